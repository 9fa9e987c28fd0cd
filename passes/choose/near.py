"""Finds the alternatives of a decision whose prices are near the best price, to measure them."""

from typing import Any

from tcc.schedule.alternatives import IMPOSSIBLE, Decision, in_order, number


def near(decision: Decision[Any], part: float) -> list[str]:
    """Returns the texts of the alternatives near the best price, without the choice, the cheapest
    first.

    A price is near the best price if it exceeds it by at most `part` of its amount: 0.3 allows 13
    us beside 10 us. Prices may be differences, which can be zero or negative.
    """
    options = in_order(decision.alternatives)
    best = number(options[0].price)
    limit = best + part * abs(best)
    texts = [a.text for a in options if a.price != IMPOSSIBLE and number(a.price) <= limit]
    return [text for text in dict.fromkeys(texts) if text != decision.choice.text]


def predicted(decision: Decision[Any]) -> float:
    """Returns the predicted seconds that a decision is about: the larger amount of the prices of
    its choice and of its best alternative.

    It is 0 if no alternative is possible.
    """
    prices = (decision.choice.price, in_order(decision.alternatives)[0].price)
    return max((abs(number(price)) for price in prices if price != IMPOSSIBLE), default=0.0)
