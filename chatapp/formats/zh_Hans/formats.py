"""How numbers are written in Chinese, where Django has it otherwise: thousands apart, as the scripts of the page do."""

THOUSAND_SEPARATOR = ","
NUMBER_GROUPING = 3
