"""`steppe fit`: the best classifier that some images can give within a budget."""
