"""The policies: one file or small folder each, with its config, its decision core and its drivers."""
