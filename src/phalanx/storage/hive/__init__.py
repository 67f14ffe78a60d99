"""Tables in the Hive-style layout: folders named `key=value`, without a manifest."""
