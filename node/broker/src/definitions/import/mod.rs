//! Carrying out a document: kind by kind, each in commands of many objects.
//!
//! What exists and can be changed is overwritten; queues, exchanges and bindings that exist stay as they are; nothing is deleted. So
//! an import that stopped half way is repeated as a whole.

mod identities;
mod settings;
mod topology;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde_json::Value;
use warren_metastore::machine::Write;
use warren_metastore::records::DestinationKind;
use warren_metastore::tree::{AbortCode, MetaError};

use super::batch::{Item, Refused, write_all};
use super::document::{self, Document};
use crate::metadata::WriteError;
use crate::node::Broker;
use crate::operations::policy::{SetError, VHOST_LIMITS};

/// Who is said to have declared what was imported.
const USER: &str = "definitions";
/// Octets of a name, at most.
const MAX_NAME: usize = 255;
/// Notices that are kept; further ones are counted.
const MAX_NOTICES: usize = 1000;

/// How far an import is, for whoever looks.
#[derive(Debug, Default)]
pub struct Count {
    done: AtomicUsize,
    total: AtomicUsize,
}

impl Count {
    /// Objects done, and how many there are.
    pub fn get(&self) -> (usize, usize) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    fn add(&self, objects: usize) {
        self.done.fetch_add(objects, Ordering::Relaxed);
    }
}

/// What an import did.
#[derive(Debug, Clone, Default)]
pub struct Imported {
    /// Objects of the document.
    pub objects: usize,
    /// What was left out or has no effect, a line each.
    pub notices: Vec<String>,
}

/// Why an import stopped. What came before the object was done.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {why}")]
pub struct ImportError {
    /// The object.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
    /// No majority of the metadata answered.
    pub timed_out: bool,
}

/// A document that is being imported.
struct Run<'a> {
    broker: &'a Broker,
    count: &'a Count,
    notices: Mutex<Vec<String>>,
    more_notices: AtomicUsize,
    fault: Mutex<Option<ImportError>>,
    /// Queues and exchanges that were left out: what leads to them is as well.
    left_out: Mutex<HashSet<(DestinationKind, String, String)>>,
    user: Arc<str>,
}

/// The write of an object and its octets; `None` where nothing is to be done.
type Made = Result<Option<(Write, usize)>, String>;

impl Broker {
    /// Carries out a document. Queues and bindings wait for the nodes that the cluster is meant to have.
    pub async fn import_definitions(
        self: &Arc<Self>,
        document: Document,
        count: &Count,
    ) -> Result<Imported, ImportError> {
        let target = self.config.target_cluster_size;
        let nodes = self.metadata.nodes().len();
        let (now, later) = if nodes < target { document.split() } else { (document, Document::default()) };
        let run = Run::new(self, count);
        run.all(&now).await?;
        let waiting = later.queues.len() + later.bindings.len();
        if waiting > 0 {
            run.notice(format!(
                "{waiting} queues and bindings wait until {target} nodes have joined the cluster, which has {nodes}"
            ));
            tokio::spawn(import_later(Arc::downgrade(self), later, target));
        }
        let mut notices = run.notices.into_inner();
        match run.more_notices.into_inner() {
            0 => {}
            more => notices.push(format!("and {more} more of the kind")),
        }
        Ok(Imported { objects: count.get().0, notices })
    }
}

/// Imports queues and bindings once the cluster has its nodes. Boxed, since an import leads to itself here.
fn import_later(broker: Weak<Broker>, document: Document, target: usize) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let Some(mut applied) = broker.upgrade().map(|broker| broker.metadata.applied()) else { return };
        loop {
            let Some(here) = broker.upgrade() else { return };
            if here.metadata.nodes().len() >= target {
                match here.import_definitions(document, &Count::default()).await {
                    Ok(imported) => {
                        tracing::info!(objects = imported.objects, "queues and bindings of definitions were imported");
                        imported.notices.iter().for_each(|notice| tracing::warn!("{notice}"));
                    }
                    Err(error) => tracing::error!(%error, "queues and bindings of definitions were not imported"),
                }
                return;
            }
            drop(here);
            if applied.changed().await.is_err() {
                return;
            }
        }
    })
}

impl<'a> Run<'a> {
    fn new(broker: &'a Broker, count: &'a Count) -> Self {
        Run {
            broker,
            count,
            notices: Mutex::default(),
            more_notices: AtomicUsize::new(0),
            fault: Mutex::default(),
            left_out: Mutex::default(),
            user: USER.into(),
        }
    }

    async fn all(&self, document: &Document) -> Result<(), ImportError> {
        let objects = [
            document.users.len(),
            document.vhosts.len(),
            document.permissions.len(),
            document.exchanges.len(),
            document.topic_permissions.len(),
            document.global_parameters.len(),
            document.policies.len(),
            document.parameters.len(),
            document.queues.len(),
            document.bindings.len(),
        ];
        self.count.total.fetch_add(objects.iter().sum(), Ordering::Relaxed);
        self.each(&document.users, |of| format!("user '{}'", of.name), |user| self.user(user)).await?;
        for vhost in &document.vhosts {
            self.vhost(vhost).await.map_err(|why| why.of(format!("virtual host '{}'", vhost.name)))?;
            self.count.add(1);
        }
        self.check_queue_limits(document)?;
        let what =
            |of: &document::Permission| format!("permissions of user '{}' in virtual host '{}'", of.user, of.vhost);
        self.each(&document.permissions, what, |permission| self.permission(permission)).await?;
        let what =
            |of: &document::Exchange| format!("exchange '{}' in virtual host '{}'", of.name, vhost_of(&of.vhost));
        self.each(&document.exchanges, what, |exchange| self.exchange(exchange)).await?;
        let what = |of: &document::TopicPermission| {
            format!(
                "topic permission of user '{}' on exchange '{}' in virtual host '{}'",
                of.user, of.exchange, of.vhost
            )
        };
        self.each(&document.topic_permissions, what, |permission| self.topic_permission(permission)).await?;
        let what = |of: &document::GlobalParameter| format!("global parameter '{}'", of.name);
        self.each(&document.global_parameters, what, |parameter| self.global_parameter(parameter)).await?;
        let what = |of: &document::Policy| format!("policy '{}' in virtual host '{}'", of.name, of.vhost);
        self.each(&document.policies, what, |policy| self.policy(policy)).await?;
        let what = |of: &document::Parameter| {
            format!("parameter '{}' of component '{}' in virtual host '{}'", of.name, of.component, of.vhost)
        };
        let (vhost_limits, others): (Vec<_>, Vec<_>) =
            document.parameters.iter().partition(|parameter| parameter.component == VHOST_LIMITS);
        self.each(&others, |of| what(of), |parameter| self.parameter(parameter)).await?;
        for parameter in vhost_limits {
            let set =
                self.broker.set_parameter(&parameter.vhost, VHOST_LIMITS, &parameter.name, parameter.value.clone());
            set.await.map_err(|error| Why::from(error).of(what(parameter)))?;
            self.count.add(1);
        }
        let what = |of: &document::Queue| format!("queue '{}' in virtual host '{}'", of.name, vhost_of(&of.vhost));
        self.each(&document.queues, what, |queue| self.queue(queue)).await?;
        self.each(&document.bindings, named_binding, |binding| self.binding(binding)).await
    }

    /// Carries out all objects of one kind.
    async fn each<T: Sync>(
        &self,
        objects: &[T],
        what: impl Fn(&T) -> String + Sync,
        make: impl Fn(&T) -> Made + Sync,
    ) -> Result<(), ImportError> {
        let items = objects.iter().enumerate().map_while(|(index, object)| match make(object) {
            Ok(Some((write, bytes))) => Some(Some(Item { index, write, bytes })),
            Ok(None) => {
                self.count.add(1);
                Some(None)
            }
            Err(why) => {
                *self.fault.lock() = Some(ImportError { what: what(object), why, timed_out: false });
                None
            }
        });
        let items = Box::new(items.flatten());
        let written = write_all(&self.broker.metadata, items, |done| self.count.add(done)).await;
        if let Err(Refused { index, error }) = written {
            let what = objects.get(index).map(&what).unwrap_or_default();
            return Err(Why::from(error).of(what));
        }
        match self.fault.lock().take() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn notice(&self, text: String) {
        let mut notices = self.notices.lock();
        if notices.len() < MAX_NOTICES {
            notices.push(text);
        } else {
            self.more_notices.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn leave_out(&self, kind: DestinationKind, vhost: &str, name: &str) {
        self.left_out.lock().insert((kind, vhost.to_owned(), name.to_owned()));
    }

    fn is_left_out(&self, kind: DestinationKind, vhost: &str, name: &str) -> bool {
        self.left_out.lock().contains(&(kind, vhost.to_owned(), name.to_owned()))
    }

    /// Refuses a document with more new queues than there may be, before the first one is declared.
    fn check_queue_limits(&self, document: &Document) -> Result<(), ImportError> {
        let view = self.broker.metadata.projections().load();
        let mut new: HashMap<&str, usize> = HashMap::new();
        for queue in &document.queues {
            let vhost = vhost_of(&queue.vhost);
            if view.queue(vhost, &queue.name).is_none() {
                *new.entry(vhost).or_default() += 1;
            }
        }
        let refused = |what: String, limit: usize| {
            let why = format!("the queues of the definitions would exceed its limit of {limit}");
            Err(ImportError { what, why, timed_out: false })
        };
        for (name, new) in &new {
            let Some(vhost) = view.vhost(name) else { continue };
            let limit = vhost.record().and_then(|record| record.max_queues);
            if let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok())
                && vhost.queue_count() + new > limit
            {
                return refused(format!("virtual host '{name}'"), limit);
            }
        }
        match self.broker.config.limits.queues {
            Some(limit) if !new.is_empty() && view.queue_count() + new.values().sum::<usize>() > limit => {
                refused("the cluster".to_owned(), limit)
            }
            _ => Ok(()),
        }
    }
}

/// What is wrong with an object.
struct Why {
    why: String,
    timed_out: bool,
}

impl Why {
    fn of(self, what: String) -> ImportError {
        ImportError { what, why: self.why, timed_out: self.timed_out }
    }
}

impl From<String> for Why {
    fn from(why: String) -> Self {
        Why { why, timed_out: false }
    }
}

impl From<WriteError> for Why {
    fn from(error: WriteError) -> Self {
        let why = match &error {
            WriteError::Refused(MetaError::Aborted { code }) => match code {
                AbortCode::NoSuchUser => "the user does not exist".to_owned(),
                AbortCode::NoSuchVhost => "the virtual host does not exist".to_owned(),
                AbortCode::NoSuchExchange | AbortCode::NoSuchSourceAndDestination => {
                    "its exchange does not exist".to_owned()
                }
                AbortCode::NoSuchDestination => "what it leads to does not exist".to_owned(),
                _ => error.to_string(),
            },
            _ => error.to_string(),
        };
        Why { why, timed_out: matches!(error, WriteError::Timeout) }
    }
}

impl From<SetError> for Why {
    fn from(error: SetError) -> Self {
        match error {
            SetError::Write(error) => error.into(),
            other => lines(&other).into(),
        }
    }
}

/// The lines of a failed validation as one.
fn lines(error: &SetError) -> String {
    match error {
        SetError::Invalid(faults) => faults.join("; "),
        other => other.to_string(),
    }
}

fn name(name: &str) -> Result<(), String> {
    match name.len() {
        1..=MAX_NAME => Ok(()),
        _ => Err(format!("a name has 1 to {MAX_NAME} bytes")),
    }
}

/// Some versions write an empty list where they mean an empty object.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn vhost_of(vhost: &Option<String>) -> &str {
    vhost.as_deref().unwrap_or_default()
}

fn named_binding(of: &document::Binding) -> String {
    format!(
        "binding from exchange '{}' to {} '{}' with routing key '{}' in virtual host '{}'",
        of.source,
        of.destination_type,
        of.destination,
        of.routing_key,
        vhost_of(&of.vhost)
    )
}
