"""How fast the package is, beside other libraries and with single levers changed."""
