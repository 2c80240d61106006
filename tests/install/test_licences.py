"""The file with the licences of the linked crates (packaging/licences), made of crates of the test."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "packaging/licences"))

import collect  # noqa: E402
from collect import LicenceError, LinkedCrate  # noqa: E402

MIT = "Copyright (c) One Author\n\nPermission is hereby granted, free of charge,\nto any person obtaining a copy of it."


def test_a_text_is_printed_once_with_its_crates():
    wide = MIT.replace("\n", "  \n ")
    crates = [LinkedCrate("b", "2.0.0", "MIT", (wide,)), LinkedCrate("a", "1.0.0", "MIT", (MIT, "a notice"))]
    other = LinkedCrate("c", "3.0.0", "MIT", (MIT.replace("One", "Another"),))
    written = collect.render(["millpond"], collect.complete([*crates, other], ROOT / "none"))
    assert written == collect.render(["millpond"], collect.complete([other, *reversed(crates)], ROOT / "none"))
    assert written.count("Permission is hereby granted") == 2
    assert "\na 1.0.0: MIT\n" in written and "\na 1.0.0, b 2.0.0\n---" in written and "\na notice\n" in written


def test_a_crate_without_a_file_gets_a_known_text(tmp_path):
    (tmp_path / "MPL-2.0.txt").write_text("Mozilla Public License\n")
    source = "https://example.org/source"
    bare = [LinkedCrate("m", "1.0.0", "MPL-2.0", (), source), LinkedCrate("n", "1.0.0", "Zlib OR MIT", (), "", ("Some One",))]
    first, second, _ = collect.complete([*bare, LinkedCrate("z", "1.0.0", "MIT", (MIT,))], tmp_path)
    assert first.texts == ("Mozilla Public License",)
    # The copyright of another crate's author is not in it.
    assert second.texts == (MIT.replace("One Author", "Some One"),)
    assert f"\nm 1.0.0: MPL-2.0; source: {source}\n" in collect.render(["millpond"], [first])


@pytest.mark.parametrize("licence, reason", [("ISC", "n 1.2.3 has no licence file"), ("MIT AND ISC", "no licence file"),
                                             ("MPL-2.0", "has no repository")])  # fmt: skip
def test_an_unknown_text_or_source_is_an_error(tmp_path, licence, reason):
    crates = [LinkedCrate("a", "1.0.0", "MIT", (MIT,)), LinkedCrate("n", "1.2.3", licence, ())]
    with pytest.raises(LicenceError, match=reason):
        collect.complete(crates, tmp_path)


def test_licences_of_code_in_other_languages_are_found(tmp_path):
    found = ["COPYRIGHT", "LICENSE-MIT", "UNLICENSE", "c/COPYING", "licenses/font", "terms.md", "third_party/a/license.txt"]
    for name in [*found, "README.md", "src/license.rs", "tests/LICENSE"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert collect.legal_files(tmp_path, "terms.md") == [tmp_path / name for name in found]


def test_notices_of_the_standard_library_are_read():
    page = """<h2 id="in-tree-files">In-tree files</h2>
        <p><b>Copyright:</b> Rust &#38; others</p>
        <h2 id="out-of-tree-dependencies">Out-of-tree</h2>
        <h3>📦 a-b-1.0.0+c</h3> <p><b>License:</b> MIT/Zlib</p> <pre>
text &#60;a&#62;
</pre>
        <h3>📦 windows-sys-2.0.0</h3> <p><b>License:</b> MIT</p> <pre>other</pre>"""
    own, other = collect.library_crates(page, "1.0.0", ("standard",))
    assert own.label == "Rust's standard library 1.0.0"
    assert own.texts == ("In-tree files\nCopyright: Rust & others", "standard")
    assert other == LinkedCrate("std/a-b", "1.0.0+c", "MIT OR Zlib", ("text <a>",))
