//! Aliases are other names of collections. They are in one file that is replaced as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Result};

use super::files;

/// Maximum aliases.
pub(crate) const ALIASES_MAX: usize = 10_000;
const KIND: &str = "aliases";

/// One change of the aliases. Several are made in order, all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AliasChange {
    /// Makes `alias` stand for `collection`, and for no other collection.
    Create {
        /// Alias.
        alias: String,
        /// Name of the collection.
        collection: String,
    },
    /// Removes an alias, if there is one of this name.
    Delete {
        /// Alias.
        alias: String,
    },
    /// Renames the alias `from` to `to`. The alias keeps its collection.
    Rename {
        /// Old alias.
        from: String,
        /// New alias.
        to: String,
    },
}

/// Collections by alias.
pub(super) type Aliases = BTreeMap<String, String>;

pub(super) fn path(directory: &Path) -> PathBuf {
    directory.join(".aliases")
}

/// Reads the aliases of a directory. Moves a damaged file away, to serve collections without
/// aliases.
pub(super) fn load(directory: &Path) -> Result<Aliases> {
    let path = path(directory);
    match files::read::<Aliases>(KIND, &path) {
        Ok(aliases) => Ok(aliases.unwrap_or_default()),
        Err(error) if is_damage(&error) => {
            let aside = directory.join(".aliases-damaged");
            tracing::error!(%error, "the aliases are lost; the file is kept as {}", aside.display());
            std::fs::rename(&path, &aside).map_err(|error| Error::io(&path, &error))?;
            Ok(Aliases::new())
        }
        Err(error) => Err(error),
    }
}

/// Returns true if the file is damaged, or if the disk cannot read it.
fn is_damage(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let code = source.and_then(|source| source.downcast_ref::<std::io::Error>()?.raw_os_error());
    error.kind() == ErrorKind::DataLoss || code == Some(rustix::io::Errno::IO.raw_os_error())
}

pub(super) fn store(directory: &Path, aliases: &Aliases) -> Result<()> {
    files::replace(KIND, &path(directory), aliases)
}

/// Returns the aliases after `changes`: the collection by alias. `is_collection` returns true for
/// the name of a collection.
///
/// # Errors
/// `InvalidArgument` for an invalid name. `AlreadyExists` for an alias that is the name of a
/// collection. `NotFound` for a missing collection, and for a missing alias to be renamed.
/// `ResourceExhausted` for more than 10,000 aliases.
pub fn changed_aliases(
    aliases: &BTreeMap<String, String>,
    changes: &[AliasChange],
    is_collection: impl Fn(&str) -> bool,
) -> Result<Aliases> {
    let mut new = aliases.clone();
    let missing = |alias: &str| Error::not_found(format!("there is no alias \"{alias}\""));
    let free = |alias: &str| {
        files::check_name(alias)?;
        if is_collection(alias) {
            Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("\"{alias}\" is a collection, so it cannot be an alias; use another name"),
            ))
        } else {
            Ok(())
        }
    };
    for change in changes {
        match change {
            AliasChange::Create { alias, collection } => {
                free(alias)?;
                if !is_collection(collection) {
                    return Err(Error::not_found(format!(
                        "there is no collection \"{collection}\""
                    )));
                }
                new.insert(alias.clone(), collection.clone());
            }
            AliasChange::Delete { alias } => {
                // As in Qdrant. Clients delete an alias before they create it, also the first time.
                new.remove(alias);
            }
            AliasChange::Rename { from, to } => {
                free(to)?;
                let collection = new.remove(from).ok_or_else(|| missing(from))?;
                new.insert(to.clone(), collection);
            }
        }
    }
    if new.len() > ALIASES_MAX {
        return Err(Error::exhausted(format!("{ALIASES_MAX} aliases at most; delete some")));
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(alias: &str, collection: &str) -> AliasChange {
        AliasChange::Create { alias: alias.into(), collection: collection.into() }
    }

    #[test]
    fn unreadable_aliases_are_damage() {
        let io = |code| Error::io(Path::new(".aliases"), &std::io::Error::from_raw_os_error(code));
        let eio = rustix::io::Errno::IO.raw_os_error();
        assert!(is_damage(&io(eio)) && is_damage(&Error::data_loss("odd")));
        assert!(!is_damage(&io(rustix::io::Errno::MFILE.raw_os_error())));
    }

    #[test]
    fn changes_are_made_in_order_or_not_at_all() {
        let there = |name: &str| name.starts_with('c');
        let all =
            |aliases: &Aliases, changes: &[AliasChange]| changed_aliases(aliases, changes, there);
        let first =
            all(&Aliases::new(), &[create("a", "c1"), create("b", "c2"), create("a", "c3")])
                .unwrap();
        assert_eq!(first.get("a").map(String::as_str), Some("c3"));
        let renamed = AliasChange::Rename { from: "a".into(), to: "z".into() };
        let delete = AliasChange::Delete { alias: "b".into() };
        let second = all(&first, &[renamed.clone(), delete.clone(), delete.clone()]).unwrap();
        assert_eq!(second.into_iter().collect::<Vec<_>>(), [("z".to_owned(), "c3".to_owned())]);
        let created = all(&Aliases::new(), &[delete, create("b", "c2")]).unwrap();
        assert_eq!(created.get("b").map(String::as_str), Some("c2"));
        assert!(all(&first, &[create("c9", "c1")]).is_err(), "a collection's name");
        assert!(all(&first, &[create("d", "nobody")]).is_err());
        assert!(all(&first, &[create(".d", "c1")]).is_err());
        assert!(all(&Aliases::new(), &[renamed]).is_err());
    }
}
