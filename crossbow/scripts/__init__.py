"""Scripts that train a model: their options, a run, its log and its picture."""

from crossbow.scripts.model_script import ModelScript
from crossbow.scripts.parser import Defaults

__all__ = ["Defaults", "ModelScript"]
