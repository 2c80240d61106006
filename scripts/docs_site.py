"""Hooks of the documentation site (mkdocs.yml).

The site's sources are docs/ and files beside it. A link works on the site as it does in the repository. A link to a
file that does not exist fails the build.
"""

import pathlib
import posixpath
import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
# Files outside docs/ that are pages, and settings files that become pages: path in the repository -> path on the site.
PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "STYLE.md": "project/style.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "examples.md",
    "docs/millpond.toml": "reference/millpond-toml.md",
    "docs/model.toml": "reference/model-toml.md",
}
PAGES |= {
    str(path.relative_to(REPOSITORY)): f"packaging/{path.parent.name}.md"
    for path in sorted(REPOSITORY.glob("packaging/*/README.md"))
}
SOURCES = {site: source for source, site in PAGES.items()}
# Folders of docs/ that are listed whole.
FOLDERS = {"Formats": "format", "Measurements": "measurements", "Decisions": "adr"}
LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def on_config(config):
    """Adds the pages that mkdocs.yml does not list."""
    docs = pathlib.Path(config.docs_dir)
    listed = {page for group in config.nav for pages in group.values() if isinstance(pages, list)
              for entry in pages for page in entry.values()}  # fmt: skip
    reference = next(group["Reference"] for group in config.nav if "Reference" in group)
    reference += [path.name for path in sorted(docs.glob("*.md")) if path.name not in listed]
    for title, folder in FOLDERS.items():
        config.nav.append({title: [f"{folder}/{path.name}" for path in sorted((docs / folder).glob("*.md"))]})
    config.nav.append({"Packages": [site for site in PAGES.values() if site.startswith("packaging/")]})
    config.nav.append({"Project": [site for site in PAGES.values() if site.startswith("project/")]})
    return config


def on_files(files, config):
    """Adds the files outside docs/ and turns settings files into pages."""
    for source, site in PAGES.items():
        text = (REPOSITORY / source).read_text()
        if source.endswith(".toml"):
            text = f"# {posixpath.basename(source)}\n\n```toml\n{text}```\n"
        files.append(File.generated(config, site, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Points links at the site's paths, outside of code."""
    here = page.file.src_uri
    parts = CODE.split(markdown)
    return "".join(part if index % 2 else LINK.sub(lambda link: _on_site(here, link), part)
                   for index, part in enumerate(parts))  # fmt: skip


def _on_site(here: str, link: re.Match) -> str:
    source = SOURCES.get(here, f"docs/{here}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link["target"]))
    if not (REPOSITORY / path).exists():
        raise PluginError(f"{source}: links to {link['target']}, which does not exist")
    if path not in PAGES and not path.startswith("docs/"):
        # The site has no page of the file, so only its name stays.
        return link["text"][1:-1]
    site = PAGES.get(path, path.removeprefix("docs/"))
    if (REPOSITORY / path).is_dir():
        site = next(f"{site}/{page.name}" for page in sorted((REPOSITORY / path).glob("*.md")))
    return f"{link['text']}({posixpath.relpath(site, posixpath.dirname(here) or '.')}{link['anchor'] or ''})"
