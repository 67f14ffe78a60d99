"""Random conditions in Spark's SQL over the columns of `sql_tables`, none of which can fail.

Phalanx evaluates some of them, evaluates others in part, and leaves many to Spark.
"""

from __future__ import annotations

from random import Random

_NUMBERS = ["0", "1", "-1", "7", "42", "2147483647", "-2147483648", "2.5", "7.0D", "1L", "-0.0D"]
_BIGS = ["0", "1", "9223372036854775807", "-9223372036854775808L + 0L", "1000000000000", "1.5"]
_FLOATS = ["0.0D", "-0.0D", "1.5D", "double('NaN')", "double('inf')", "-double('inf')", "1", "0.1"]
_NARROW = ["0.5F", "-0.0F", "0.0F", "float('NaN')", "0.5D", "3", "float('-inf')", "-7.25"]
_PRICES = ["14.20", "14.2", "0", "-0.01", "14.205", "9999999999.99", "1e3", "99999999999999.99"]
_TEXTS = [
    "''",
    "'a'",
    "'A'",
    "'ab'",
    "'a%c'",
    "'ä'",
    "'\\n'",
    "'日本'",
    "'a '",
    "'zzz'",
    "'US'",
    "'DE'",
]
_DATES = [
    "DATE'2024-01-01'",
    "DATE'2023-06-15'",
    "DATE'0001-01-01'",
    "DATE'9999-12-31'",
    "DATE'1969-12-31'",
    "DATE'-5000-01-01'",
    "DATE'290000-01-01'",
]
_MOMENTS = [
    "TIMESTAMP'2024-01-01 00:00:00'",
    "TIMESTAMP'2024-01-01 00:00:00Z'",
    "TIMESTAMP'2023-07-01 12:34:56.789012+02:00'",
    "TIMESTAMP'0001-01-01 00:00:00Z'",
    "TIMESTAMP'9999-12-31 23:59:59.999999Z'",
    "timestamp_micros(0)",
]
_LOCALS = [
    "TIMESTAMP_NTZ'2024-01-01 00:00:00'",
    "TIMESTAMP_NTZ'2023-07-01 12:34:56.789012'",
    "TIMESTAMP_NTZ'0001-01-01 00:00:00'",
    "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
]
_COLUMNS = {
    "id": ["5", "17", "300", "599", "1000", "-1"],
    "n": _NUMBERS,
    "big": _BIGS,
    "x": _FLOATS,
    "y": _NARROW,
    "price": _PRICES,
    "country": _TEXTS,
    "name": _TEXTS,
    "place.city": _TEXTS,
    "place.zip": _NUMBERS,
    "d": _DATES,
    "ts": _MOMENTS,
    "local": _LOCALS,
    "data": ["X''", "X'61'", "X'C3A4'", "X'FF'"],
    "flag": ["true", "false"],
}
_COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "<=>"]
_PATTERNS = [
    "a%",
    "%a",
    "%a%",
    "a_c",
    "a\\\\%c",
    "%",
    "",
    "a%c",
    "_",
    "ä%",
    "%\n%",
    "日%",
    "A%",
    "a\\\\\\\\c",
]
_PARTS = ["year", "month", "day", "quarter", "dayofweek", "dayofyear"]
_ODD = [
    "upper(name) = 'A'",
    "length(name) = 1",
    "trim(name) = 'a'",
    "coalesce(n, 0) = 0",
    "n % 3 = 1",
    "try_add(n, 1) > 7",
    "n = big",
    "country = name",
    "country < name",
    "name RLIKE '^a'",
    "cast(n AS string) = '7'",
    "cast(n AS bigint) = 7",
    "cast(n AS double) = 7.0D",
    "cast(big AS decimal(30, 2)) > 1.00",
    "cast(name AS binary) = X'61'",
    "isnan(x)",
    "NOT isnan(y)",
    "x = y",
    "price * 2 > 28",
    "if(flag, n, 1) = 1",
    "CASE WHEN n > 0 THEN country ELSE name END = 'US'",
    "array_contains(tags, 'a')",
    "size(tags) = 0",
    "place IS NULL",
    "tags IS NOT NULL",
    "cast(ts AS date) = DATE'2024-01-01'",
    "cast(ts AS date) >= DATE'2024-12-31'",
    "cast(ts AS date) <> DATE'2024-03-10'",
    "cast(local AS date) < DATE'2023-05-05'",
    "cast(local AS date) = DATE'2024-02-29'",
    "date_trunc('MONTH', ts) = TIMESTAMP'2024-03-01 00:00:00'",
    "trunc(d, 'MM') = DATE'2024-02-01'",
    "hour(local) = 5",
    "hour(ts) >= 20",
    "ts > d",
    "ts < local",
    "d = cast(local AS date)",
    "substring(name, 1, 1) = 'a'",
    "left(name, 2) = 'ab'",
    "substring(country, 2) = 'S'",
    "name || 'x' = 'ax'",
    "flag",
    "NOT flag",
    "flag = (n > 0)",
    "n IN (1, 7, NULL)",
    "n NOT IN (1, 7, NULL)",
    "n NOT IN (1, 7)",
    "x IN (0.0D, double('NaN'))",
    "x NOT IN (0.0D, 1.5D)",
    "y IN (-0.0F, 0.5F)",
    "name COLLATE UTF8_LCASE = 'a'",
    "country IN ('US', '', 'nowhere')",
    "id IN (1, 2, 3, 250, 450)",
    "n BETWEEN -1 AND 7",
    "true",
    "n = NULL",
    "NOT (n <=> NULL)",
    "struct(n, name) = struct(7, 'a')",
    "place = named_struct('city', 'a', 'zip', 7)",
    "cast(X'FF' AS string) = name",
]


def condition(chance: Random, depth: int = 2) -> str:
    """Draw a condition of the given depth."""
    if depth and chance.random() < 0.55:
        parts = [condition(chance, depth - 1) for _ in range(chance.randint(1, 3))]
        if len(parts) == 1:
            return f"NOT ({parts[0]})"
        return "(" + chance.choice([" AND ", " OR "]).join(f"({part})" for part in parts) + ")"
    return _leaf(chance)


def _leaf(chance: Random) -> str:
    column = chance.choice(list(_COLUMNS))
    constant = chance.choice(_COLUMNS[column])
    match chance.randrange(10):
        case 0:
            return chance.choice(_ODD)
        case 1:
            return f"{column} IS {chance.choice(['', 'NOT '])}NULL"
        case 2:
            text = chance.choice(["name", "country", "place.city"])
            return f"{text} LIKE '{chance.choice(_PATTERNS)}'"
        case 3:
            constants = {chance.choice(_COLUMNS[column]) for _ in range(4)}
            return f"{column} {chance.choice(['', 'NOT '])}IN ({', '.join(sorted(constants))})"
        case 4:
            part, value = chance.choice(_PARTS), chance.choice([1, 2, 12, 2023, 2024, 1969, 9999])
            of = chance.choice(["d", "ts", "local"])
            return f"{part}({of}) {chance.choice(_COMPARISONS)} {value}"
        case 5:
            return f"{constant} {chance.choice(_COMPARISONS)} {column}"
    return f"{column} {chance.choice(_COMPARISONS)} {constant}"
