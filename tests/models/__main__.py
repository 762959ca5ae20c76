"""All models and all rules, in words: `python -m tests.models` (`make models`).

Ends with status 1 if a model is violated, or if a rule is missed by none.
"""

import sys
import time

from tests.models.catalogue import MODELS, REMOVALS
from tests.models.explore import explore


def main() -> int:
    began_s = time.perf_counter()
    failed = 0
    for model in MODELS:
        report = explore(model)
        print(report)
        if report.violation is not None:
            failed += 1
            print(report.violation)
    for removal in REMOVALS:
        violation = removal.explored().violation
        failed += violation is None
        shown = "nothing breaks" if violation is None else str(violation)
        print(f"\nwithout the rule that {removal.rule}: {shown}")
    print(
        f"\n{len(MODELS)} models, {len(REMOVALS)} rules, {failed} failed, "
        f"{time.perf_counter() - began_s:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
