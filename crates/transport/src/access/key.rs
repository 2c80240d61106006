//! A key and its rights.

use std::sync::Arc;

use base::{Error, Result};
use os::CpuAccount;

use super::limits::{ExceededLimit, KeyLimits, KeyQuota};
use super::names::{CollectionUsage, NameRule, permits, permits_all};
use super::role::{CollectionScope, KeyRole, Operation};

/// A key of the file or of a flag, or a token that is signed with one.
#[derive(Clone, Debug)]
pub(super) struct AccessKey {
    pub(super) name: Arc<str>,
    pub(super) hash: blake3::Hash,
    pub(super) role: KeyRole,
    /// `None` permits all.
    pub(super) models: Option<Vec<NameRule>>,
    pub(super) collections: Option<Vec<NameRule>>,
    /// True if operations that use no collection are refused.
    pub(super) collections_only: bool,
    pub(super) validity: KeyValidity,
    pub(super) limits: Arc<KeyLimits>,
}

/// The time for which a key is accepted.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyValidity {
    /// While the server has the key.
    WhileListed,
    /// For a token. Until this number of seconds since the epoch, or for ever if `None`.
    Until(Option<u64>),
}

impl AccessKey {
    /// Returns an unlimited key of a flag.
    pub(super) fn of_flag(name: &str, key: &str, role: KeyRole) -> AccessKey {
        AccessKey {
            name: name.into(),
            hash: blake3::hash(key.as_bytes()),
            role,
            models: None,
            collections: None,
            collections_only: false,
            validity: KeyValidity::WhileListed,
            limits: KeyLimits::new(KeyQuota::default()),
        }
    }
}

/// The rights of a request's key.
#[derive(Clone, Debug)]
pub struct KeyGrant(pub(super) Arc<AccessKey>);

impl KeyGrant {
    /// Returns the name of the key.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the role of the key.
    pub fn role(&self) -> KeyRole {
        self.0.role
    }

    /// Returns the account to which the work of the key's requests is charged.
    pub fn cpu_account(&self) -> Arc<CpuAccount> {
        self.0.limits.cpu.clone()
    }

    /// Checks role and names.
    ///
    /// # Errors
    /// `PermissionDenied`, with what the key lacks.
    pub(super) fn check(&self, operation: &Operation) -> Result<()> {
        let key = &*self.0;
        if key.role < operation.role {
            return Err(Error::denied(format!(
                "key \"{}\" has the role {}; this needs {}",
                key.name,
                key.role.name(),
                operation.role.name()
            )));
        }
        if let Some(model) = &operation.model {
            self.check_model(model)?;
        }
        self.check_collections(operation)
    }

    /// Checks that the key may create the collection `name`.
    ///
    /// # Errors
    /// `PermissionDenied` if it may not.
    pub fn check_create(&self, name: &str) -> Result<()> {
        let collections = CollectionScope::Whole(name.to_owned());
        self.check_collections(&Operation { collections, ..Operation::new(KeyRole::Write) })
    }

    /// Refuses an operation on collections that the key may not use in this way.
    fn check_collections(&self, operation: &Operation) -> Result<()> {
        let key = &*self.0;
        let denied = |what: String| Err(Error::denied(format!("key \"{}\" {what}", key.name)));
        let (name, usage) = match &operation.collections {
            CollectionScope::Server if key.collections_only => {
                return denied("is for collections only; this uses none".to_owned());
            }
            CollectionScope::Any if key.collections.is_some() => {
                return denied("may use some collections only; this may name any".to_owned());
            }
            CollectionScope::Server | CollectionScope::Names | CollectionScope::Any => {
                return Ok(());
            }
            CollectionScope::Points(name) if operation.role < KeyRole::Write => {
                (name, CollectionUsage::Read)
            }
            CollectionScope::Points(name) => (name, CollectionUsage::Write),
            CollectionScope::Whole(name) => (name, CollectionUsage::Manage),
        };
        let Some(rules) = &key.collections else { return Ok(()) };
        let mut rules = rules.iter().filter(|rule| rule.matches(name)).peekable();
        if rules.peek().is_none() {
            return denied(format!("may not use collection {name}"));
        }
        if rules.any(|rule| rule.allows(usage)) {
            Ok(())
        } else if usage == CollectionUsage::Manage {
            denied(format!("may not create, remove or change collection {name} as a whole"))
        } else {
            denied(format!("may only read collection {name}"))
        }
    }

    /// Returns true if the key may use the collection `name`.
    pub fn sees_collection(&self, name: &str) -> bool {
        permits(self.0.collections.as_deref(), name)
    }

    /// Returns true if the key may use the model `name`.
    pub fn sees_model(&self, name: &str) -> bool {
        permits(self.0.models.as_deref(), name)
    }

    /// Checks the name of a model.
    ///
    /// # Errors
    /// `PermissionDenied` if the key may not use it.
    pub fn check_model(&self, model: &str) -> Result<()> {
        if self.sees_model(model) {
            Ok(())
        } else {
            Err(Error::denied(format!("key \"{}\" may not use model {model}", self.0.name)))
        }
    }

    /// Checks that the key may use every model.
    ///
    /// # Errors
    /// `PermissionDenied` if it may use some models only.
    pub fn check_all_models(&self) -> Result<()> {
        if permits_all(self.0.models.as_deref()) {
            Ok(())
        } else {
            Err(Error::denied(format!(
                "key \"{}\" may use some models only; this changes all models",
                self.0.name
            )))
        }
    }

    /// Counts a request.
    ///
    /// # Errors
    /// The limit that the request would exceed.
    pub(super) fn count_request(&self) -> std::result::Result<(), ExceededLimit> {
        self.0.limits.count()
    }
}
