//! The older text format of metrics, made of OpenMetrics.

/// Content type of the older text format.
pub const CLASSIC_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns true if a client accepts the older text format and not OpenMetrics. Browsers accept
/// `text/html`. They show this format as text, and would download OpenMetrics as a file.
pub(crate) fn wants_classic(accept: &str) -> bool {
    let shows_text = accept.contains("text/plain") || accept.contains("text/html");
    shows_text && !accept.contains("openmetrics-text")
}

/// Converts OpenMetrics to the older text format. Counters are declared by the names of their
/// samples, and units and exemplars are left out.
pub(crate) fn classic(exposition: &str) -> String {
    let mut text = String::with_capacity(exposition.len());
    let mut help = None;
    for line in exposition.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), about) => help = about,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (name, kind) = match kind {
                    "counter" => (format!("{name}_total"), kind),
                    "info" => (format!("{name}_info"), "gauge"),
                    "unknown" => (name.to_owned(), "untyped"),
                    kind => (name.to_owned(), kind),
                };
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {name} {help}\n"));
                }
                text.push_str(&format!("# TYPE {name} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                text.push_str(without_exemplar(line));
                text.push('\n');
            }
        }
    }
    text
}

/// Returns a sample without its exemplar, which begins with ` # {` outside the values of labels.
fn without_exemplar(line: &str) -> &str {
    let mut starts = line.match_indices(" # {").map(move |(at, _)| &line[..at]);
    starts.find(|sample| !ends_in_quotes(sample)).unwrap_or(line)
}

/// Returns true if the text ends inside the value of a label.
fn ends_in_quotes(text: &str) -> bool {
    let mut quoted = false;
    let mut escaped = false;
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exemplars_are_cut_off_samples() {
        let value = r#"a_total{key="x\" # {y}"} 3"#;
        assert_eq!(without_exemplar(value), value);
        let bucket = r#"b_bucket{le="1.0",model="m # {"} 2"#;
        let exemplar = format!("{bucket} # {{trace_id=\"4bf9\"}} 0.5 1700000000.0");
        assert_eq!(without_exemplar(&exemplar), bucket);
    }
}
