"""How payloads are stored: JSON in blocks, row sets as Arrow and Parquet, and files for others.

Runs where a result is written or read.
Imported by the data plane; nothing here knows a tier.
"""
