//! Aliases of a registry: read, changed between writes, and removed with their collection.

use std::path::Path;
use std::sync::Arc;

use base::{Error, Result};

use super::{AliasesKept, RegistryCore};
use crate::registry::aliases::{self, AliasChange, Aliases};
use crate::registry::named::NamedCollection;

impl RegistryCore {
    /// Returns all aliases with the names of their collections, by alias.
    pub(in crate::registry) fn aliases(&self) -> Vec<(String, String)> {
        self.map.read().aliases.iter().map(|(alias, name)| (alias.clone(), name.clone())).collect()
    }

    /// Returns the collection of a name, and a guard that keeps aliases unchanged.
    ///
    /// # Errors
    /// As [`RegistryCore::get`].
    pub(in crate::registry) fn writing(
        &self,
        name: &str,
    ) -> Result<(Arc<NamedCollection>, AliasesKept<'_>)> {
        let guard = self.writers.read();
        Ok((self.get(name)?, guard))
    }

    /// Changes aliases, all or none, if `still` returns true once no write is in progress. Returns
    /// the result of `still`.
    ///
    /// # Errors
    /// `Unavailable` with a retry delay if a write takes longer than
    /// `RegistryOptions::alias_wait_max`. Also errors of [`aliases::changed_aliases`], of
    /// [`RegistryCore::check_directory`] and the file system.
    pub(in crate::registry) fn change_aliases(
        &self,
        changes: &[AliasChange],
        still: impl FnOnce() -> bool,
    ) -> Result<bool> {
        let timeout = self.options.alias_wait_max;
        let _writers = self.writers.try_write_for(timeout).ok_or_else(|| {
            Error::unavailable(format!(
                "a write has taken {timeout:?}, and aliases change between writes; try again"
            ))
            .with_retry_after(timeout)
        })?;
        // No collection is removed between the check and the change.
        let _changing = self.changing.lock();
        if !still() {
            return Ok(false);
        }
        let new = {
            let map = self.map.read();
            aliases::changed_aliases(&map.aliases, changes, |name| map.entries.contains_key(name))?
        };
        self.check_directory()?;
        aliases::store(&self.options.directory, &new)?;
        self.map.write().aliases = new;
        Ok(true)
    }

    /// Removes the aliases of a collection and stores the others. The caller holds `changing`.
    ///
    /// # Errors
    /// The error of the file system. The aliases are then removed in memory only.
    pub(super) fn remove_aliases_of(&self, name: &str) -> Result<()> {
        let mut aliases = self.map.read().aliases.clone();
        let before = aliases.len();
        aliases.retain(|_, collection| collection != name);
        if aliases.len() == before {
            return Ok(());
        }
        let stored = aliases::store(&self.options.directory, &aliases);
        self.map.write().aliases = aliases;
        stored
    }
}

/// Reads the aliases of a directory with these collections. A power loss may have left aliases of a
/// removed collection. They must not apply to a later collection of the same name.
///
/// # Errors
/// The errors of [`aliases::load`].
pub(super) fn sound_aliases(directory: &Path, names: &[String]) -> Result<Aliases> {
    let mut aliases = aliases::load(directory)?;
    let before = aliases.len();
    aliases.retain(|alias, collection| names.contains(collection) && !names.contains(alias));
    if aliases.len() < before
        && let Err(error) = aliases::store(directory, &aliases)
    {
        tracing::warn!(%error, "aliases of removed collections stay until the next change");
    }
    Ok(aliases)
}
