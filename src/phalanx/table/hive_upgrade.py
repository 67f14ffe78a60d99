"""stub"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.storage.hive_root import HiveRoot
from phalanx.storage.manifest import Manifest


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    pass


def plan_upgrade(root: HiveRoot) -> UpgradePlan:
    raise NotImplementedError


def upgrade(root: HiveRoot, plan: UpgradePlan) -> Manifest:
    raise NotImplementedError
