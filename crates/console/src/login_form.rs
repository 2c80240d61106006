//! The page with the form for a key.

use http::{HeaderValue, header};
use transport::Reply;

use crate::files::guarded;

/// Content security policy: the form may be sent to this server, and no script runs.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'";

/// Returns the form with the error of the last try. After the login it redirects to the path
/// `next`.
pub(crate) fn login_page(next: &str, error: Option<&str>) -> Reply {
    let page = include_str!("login.html")
        .replace("{next}", &escaped(next))
        .replace("{describes}", if error.is_some() { " error" } else { "" })
        .replace("{invalid}", if error.is_some() { " aria-invalid=\"true\"" } else { "" })
        .replace("{error}", &error.map_or_else(String::new, alert));
    guarded(Reply::body("text/html; charset=utf-8", page), POLICY)
        .with_header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        // Without a referrer a browser would send the form with the origin "null".
        .with_header(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"))
}

fn alert(error: &str) -> String {
    format!("<p class=\"error\" id=\"error\" role=\"alert\">{}</p>\n  ", escaped(error))
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // A name in braces, such as `{error}`, would be replaced in a value that was inserted.
            '{' => safe.push_str("&#123;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(escaped("a\"<b>&'"), "a&quot;&lt;b&gt;&amp;&#39;");
        assert!(!include_str!("login.html").contains("<script"));
        assert_eq!(escaped("/{error}"), "/&#123;error}");
    }
}
