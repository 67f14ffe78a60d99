"""Any sequence of operations on a table of the expression draft, and its upgrade among them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

import phalanx
from phalanx.errors import PhalanxError
from phalanx.model.specs.expression_draft import has_call
from phalanx.model.specs.partition_by import CustomExpression
from properties.test_table_machine import StrongTableMachine, TableMachine
from tables import SOAK


class _Drafted(TableMachine):
    """A table that is stored as the draft says, until it is upgraded."""

    layout = "expressions"

    def make(self, terms: list[Any]) -> None:
        self.table = phalanx.create(
            self.root,
            self.plain_schema,
            terms,
            transaction=self.transaction,
            layout="expressions",
        )

    def partition_by(self, data: st.DataObject) -> list[Any]:
        terms = super().partition_by(data)
        return [
            term
            for term in terms
            if not isinstance(term.derivation, CustomExpression)
            or "murmur3" not in term.derivation.sql
        ]

    @rule(data=st.data())
    def upgrade(self, data: st.DataObject) -> None:
        fields = [field for spec in self.table.specs.values() for field in spec.fields]
        is_hashed = any(has_call(field, "md5_int") for field in fields)
        if is_hashed and self.layout == "expressions":
            with pytest.raises(PhalanxError, match="has no md5_int"):
                self.table.upgrade()
        else:
            self.table.upgrade()
            self.layout = "namespace"
        event(f"layout: {self.layout}")
        assert self.table.layout == self.layout
        self.check(data)


class DraftedMachine(_Drafted):
    """In weak mode."""


class StrongDraftedMachine(_Drafted, StrongTableMachine):
    """In strong mode."""


TestDraftedMachine = DraftedMachine.TestCase
TestDraftedMachine.settings = settings(max_examples=80 if SOAK else 5, stateful_step_count=8)
TestStrongDraftedMachine = StrongDraftedMachine.TestCase
TestStrongDraftedMachine.settings = settings(max_examples=40 if SOAK else 3, stateful_step_count=8)
