"""Writers: one module for each format that a report can be written in."""
