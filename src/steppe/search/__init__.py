"""`steppe fit`: the best classifier that some images can give within a budget."""

from steppe.search.budget import Budget, parse_budget
from steppe.search.fitting import fit
from steppe.search.pareto import Fitted
from steppe.search.space import Wanted

__all__ = ["Budget", "Fitted", "Wanted", "fit", "parse_budget"]
