"""The facade a user holds: `Table`, and how to make and open one."""
