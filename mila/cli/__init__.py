"""The command line: plans, trainers and samplers give rows and numbers, and only here they are drawn."""
