"""The torture of steppe: kills, fuzzed input, hostile files and bad places. `make torture`, or `python -m torture`."""
