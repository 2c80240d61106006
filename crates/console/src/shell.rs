//! The shell of all pages: head, navigation, and footer around the body of a page.

/// A page of the server.
pub(crate) struct PageSource {
    /// Path of the page.
    pub(crate) path: &'static str,
    /// Name in the title and as heading.
    pub(crate) name: &'static str,
    /// Name in the navigation; `None` if the page is reached from another.
    pub(crate) tab: Option<&'static str>,
    /// Style sheets besides `page.css`.
    pub(crate) styles: &'static [&'static str],
    /// Module that the page starts.
    pub(crate) script: &'static str,
    /// Identifier of the element that the link for keyboards skips to.
    pub(crate) skip: &'static str,
    /// Content security policy of the page.
    pub(crate) policy: &'static str,
    /// Elements between header and footer.
    pub(crate) body: &'static str,
}

/// Links of the navigation that are not pages. They come after the pages.
const OTHER_TABS: [(&str, &str); 1] = [("/metrics", "Metrics")];

/// Returns the HTML of `page`, with a navigation of `pages`.
pub(crate) fn render(page: &PageSource, pages: &[PageSource]) -> String {
    let title = match page.path {
        "/" => "Millpond".to_owned(),
        _ => format!("{} · Millpond", page.name),
    };
    let style = |path: &&str| format!("<link rel=\"stylesheet\" href=\"{path}\">\n");
    include_str!("shell.html")
        .replace("{title}", &title)
        .replace("{styles}", &page.styles.iter().map(style).collect::<String>())
        .replace("{script}", page.script)
        .replace("{skip}", page.skip)
        .replace("{tabs}", &tabs(page, pages))
        .replace("{name}", page.name)
        .replace("{version}", crate::VERSION)
        .replace("{body}", page.body.trim_end())
}

/// Returns the links of the navigation. The link of `page` is marked.
fn tabs(page: &PageSource, pages: &[PageSource]) -> String {
    let of_pages = pages.iter().filter_map(|other| Some((other.path, other.tab?)));
    let link = |(path, name): (&str, &str)| {
        let current = if path == page.path { " aria-current=\"page\"" } else { "" };
        format!("<a href=\"{path}\"{current}>{name}</a>")
    };
    of_pages.chain(OTHER_TABS).map(link).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_surrounds_the_body() {
        let page = |path, tab| PageSource {
            path,
            name: "One",
            tab,
            styles: &["/a.css"],
            script: "/page-a.js",
            skip: "start",
            policy: "",
            body: "<main id=\"start\"></main>\n",
        };
        let pages = [page("/one", Some("First")), page("/two", None)];
        let html = render(&pages[0], &pages);
        for part in [
            "<title>One · Millpond</title>",
            "<link rel=\"stylesheet\" href=\"/a.css\">",
            "src=\"/page-a.js\"",
            "<a href=\"/one\" aria-current=\"page\">First</a> <a href=\"/metrics\">Metrics</a></nav>",
            "href=\"#start\"",
            "<main id=\"start\"></main>\n<footer>",
            crate::VERSION,
        ] {
            assert!(html.contains(part), "{part} not in\n{html}");
        }
        assert!(!html.contains("/two") && !html.contains('{'));
    }
}
