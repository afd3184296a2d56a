"""Scripts that train a model: options, the run, its log and its plot."""

from crossbow.scripts.model_script import ModelDescription, ModelScript
from crossbow.scripts.parser import Defaults

__all__ = ["Defaults", "ModelDescription", "ModelScript"]
