//! A server's metrics, read from its exposition.

/// One exposition.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    series: Vec<(String, f64)>,
}

impl Scrape {
    /// Parses exposition text. Ignores lines that are not series.
    pub fn parse(text: &str) -> Scrape {
        let series = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let end =
                    line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1))?;
                let value = line[end..].split_whitespace().next()?.parse().ok()?;
                Some((line[..end].to_owned(), value))
            })
            .collect();
        Scrape { series }
    }

    /// Returns the series called `name` that carry all of `labels`.
    fn matching<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a (String, f64)> {
        self.series.iter().filter(move |(series, _)| {
            let (own, rest) = series.split_once('{').unwrap_or((series, ""));
            own == name
                && labels.iter().all(|(key, value)| rest.contains(&format!("{key}=\"{value}\"")))
        })
    }

    /// Returns the sum of the series called `name` that carry all of `labels`, or 0 if there is
    /// none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|(_, value)| value).sum()
    }

    /// Returns the sorted values of label `key` of the series called `name` with `labels` whose
    /// value is not 0.
    pub fn label_values(&self, name: &str, labels: &[(&str, &str)], key: &str) -> Vec<String> {
        let mut values: Vec<String> = self
            .matching(name, labels)
            .filter(|(_, value)| *value != 0.0)
            .filter_map(|(series, _)| {
                let start = series.find(&format!("{key}=\""))? + key.len() + 2;
                Some(series[start..].split('"').next()?.to_owned())
            })
            .collect();
        values.sort();
        values.dedup();
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_labels() {
        let scrape = Scrape::parse(
            "# HELP x y\nmillpond_swaps_total{model=\"ctr\"} 3\nmillpond_swaps_total{model=\"a b\"} 2\n\
             plain 4.5\nb{model=\"ctr\",version=\"7\"} 1\nb{model=\"ctr\",version=\"6\"} 0\nbroken\n# EOF\n",
        );
        assert_eq!(scrape.sum("millpond_swaps_total", &[("model", "ctr")]), 3.0);
        assert_eq!(scrape.sum("millpond_swaps_total", &[]), 5.0);
        assert_eq!(scrape.sum("plain", &[]), 4.5);
        assert_eq!(scrape.sum("missing", &[]), 0.0);
        assert_eq!(scrape.label_values("b", &[("model", "ctr")], "version"), ["7"]);
    }
}
