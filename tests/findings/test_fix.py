"""What findings advise is named, and each name says what it is and how it is tried, or why it is not."""

from __future__ import annotations

import ast

import pytest

from nsysx import findings
from nsysx.findings._case import Fix, way
from nsysx.inject.nsysx_probe import changes
from tests.samples import NAMES, PAIR_NAMES, Samples
from tests.test_layers import PACKAGE, tree_of

REMEDIES = changes.remedies()


def test_a_remedy_is_tried_or_says_why_not() -> None:
    for name, remedy in REMEDIES.items():
        assert remedy.name == name and remedy.advice
        assert isinstance(remedy, changes.Change) != bool(remedy.untried), name
        assert remedy.example or not remedy.label


def test_code_to_paste_is_that_of_a_remedy_that_has_a_name() -> None:
    with pytest.raises(ValueError, match="no remedy"):
        Fix("Do this", "model = faster(model)")
    with pytest.raises(KeyError):
        Fix.by_name("no-such-remedy")
    with pytest.raises(KeyError):
        way("compile,no-such-remedy")


def test_no_rule_gives_a_finding_code_of_its_own() -> None:
    """Only a Fix writes the code of a finding; it takes none without a name."""
    for path in (PACKAGE / "findings").glob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                assert not {"paste", "remedies"} & {k.arg for k in node.keywords} and len(node.args) <= 13, path.name


def test_each_rule_tries_changes_that_exist() -> None:
    known = changes.changes_by_name({})
    assert {name for rule in findings.rules() for name in rule.RULE.tries} <= set(known)
    assert findings.codes_of("tf32") == ("NSX116",) and "tf32" in findings.tries("NSX116")
    assert findings.tries("NSX999") == () == findings.codes_of("nothing")


def test_every_advice_with_code_names_its_remedy(recorded: Samples, pairs: Samples) -> None:
    coded = [
        f
        for samples, names in ((recorded, NAMES), (pairs, PAIR_NAMES))
        for name in names
        for f in samples.summary(name).findings or ()
        if f.paste
    ]
    assert {"NSX102", "NSX105", "NSX106", "NSX112", "NSX116"} <= {f.code for f in coded}
    for finding in coded:
        assert finding.remedies and all(part in REMEDIES for r in finding.remedies for part in r.parts)


def test_words_given_for_one_remedy_are_its_own() -> None:
    fix = Fix.by_name("tf32", text="Do it", paste="x()")
    assert (fix.ways[0].text, fix.ways[0].paste) == ("Do it", "x()")
    assert fix.but(text="Do it; look").ways[0].text == "Do it; look"


def test_alternatives_stand_below_each_other_with_their_labels() -> None:
    fix = Fix.by_name("tf32", "autocast-bf16")
    assert fix.paste.splitlines() == [
        'torch.set_float32_matmul_precision("high")    # TF32',
        'with torch.autocast("cuda", torch.bfloat16):  # or BF16',
        "    loss = model(x).sum()",
    ]
    assert fix.text == "torch.set_float32_matmul_precision('high') for TF32, or torch.autocast('cuda', torch.bfloat16)"


def test_a_list_keeps_its_lead_in_each_of_its_parts() -> None:
    fix = Fix.listed("Move fewer bytes: ", (("compile", "fuse"), ("tf32", "narrow"), ("fused", "less")), ", or ")
    assert fix.text == "Move fewer bytes: fuse, narrow, or less"
    assert [one.text for one in fix.ways] == [f"Move fewer bytes: {word}" for word in ("fuse", "narrow", "less")]
