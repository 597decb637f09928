"""The command line: `prodssm fit`, `forecast`, `filter`, `smooth`, `backtest`, `simulate`, `inspect`, `report`, `demo`."""
