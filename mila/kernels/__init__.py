"""The maths without state: one signature table (``signatures``), one package per backend (``cpu``)."""
