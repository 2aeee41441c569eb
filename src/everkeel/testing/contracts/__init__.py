"""What every store and transport must do, as tests to subclass: run them on one of your own.

`inbox` and `dead_letters` are for stores; the classes say what they need.
"""
