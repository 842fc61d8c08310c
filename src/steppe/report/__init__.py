"""Reports on runs: a table for the terminal, and one self-contained HTML page."""

from steppe.report.page import write_report
from steppe.report.rows import Row, Stat, row_values, summarise
from steppe.report.terminal import print_table

__all__ = ["Row", "Stat", "print_table", "row_values", "summarise", "write_report"]
