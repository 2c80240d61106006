//! Options of a provider's store.

use std::fmt;
use std::ops::Deref;

/// Names and values of the store provider's variables, in lower case. The values may be secrets, so
/// no log shows them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreOptions(Vec<(String, String)>);

impl FromIterator<(String, String)> for StoreOptions {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(options: I) -> StoreOptions {
        StoreOptions(options.into_iter().collect())
    }
}

impl Deref for StoreOptions {
    type Target = [(String, String)];

    fn deref(&self) -> &[(String, String)] {
        &self.0
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_shown() {
        let option = ("aws_secret_access_key".to_owned(), "s3cret".to_owned());
        let options = StoreOptions::from_iter([option.clone()]);
        assert_eq!(format!("{options:?}"), r#"["aws_secret_access_key"]"#);
        assert_eq!(options.to_vec(), [option]);
    }
}
