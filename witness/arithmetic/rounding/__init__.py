"""Element-wise operations, comparisons, ranges and optimisers' updates: single IEEE operations in a stated order."""
