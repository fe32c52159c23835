//! Export and import of definitions.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::mpsc;
use warren_broker::Broker;
use warren_broker::definitions::export::{ExportError, IMPORTED_HASH, export};
use warren_broker::definitions::{Count, Document};
use warren_metastore::records::GlobalParameter;

use super::protocol::{Code, Refusal, Request};
use super::state::NodeState;
use super::{Answer, Outcome, PROGRESS_EVERY, Progress};
use crate::boot_definitions::hash;

/// Pieces of an export that wait for a slow caller.
const WAITING: usize = 4;

/// `export_definitions`: of the cluster as this node knows it now.
pub fn export_all(broker: &Broker) -> Outcome {
    let view = broker.metadata().projections().load();
    let (pieces, out) = mpsc::channel(WAITING);
    tokio::task::spawn_blocking(move || {
        let sent = export(&view, |piece| pieces.blocking_send(Ok(piece)).is_ok());
        match sent {
            Ok(()) | Err(ExportError::Unwanted) => {}
            Err(error) => drop(pieces.blocking_send(Err(Refusal::new(Code::Internal, error.to_string())))),
        }
    });
    Ok(Answer::Text(out))
}

/// `import_definitions`.
pub async fn import(state: &NodeState, broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let text = request.text("document").to_owned();
    let skip = request.flag("skip-if-unchanged");
    let algorithm = state.configuration.settings.definitions.hash;
    let parsed = tokio::task::spawn_blocking(move || {
        let hash = skip.then(|| hash(text.as_bytes(), algorithm));
        (hash, Document::parse(text.as_bytes()))
    });
    let (hash, document) = parsed.await.map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
    let document = document.map_err(|fault| Refusal::new(Code::Invalid, fault.to_string()))?;
    if let Some(hash) = &hash {
        let last = GlobalParameter::get(&broker.metadata().tree(), IMPORTED_HASH).ok().flatten();
        if last.is_some_and(|last| last.value == hash.as_str()) {
            return Ok(Answer::Value(json!({"unchanged": true, "objects": 0, "notices": []})));
        }
    }
    let count = Count::default();
    let importing = broker.import_definitions(document, &count);
    tokio::pin!(importing);
    let imported = loop {
        match tokio::time::timeout(PROGRESS_EVERY, &mut importing).await {
            Ok(imported) => break imported,
            Err(_) => {
                let (done, total) = count.get();
                progress.tell(done, total).await;
            }
        }
    };
    let imported = imported.map_err(|error| {
        let code = if error.timed_out { Code::Timeout } else { Code::Unavailable };
        Refusal::new(code, format!("Failed to import definitions: {error}"))
    })?;
    if let Some(hash) = hash {
        broker.metadata().write(GlobalParameter::set(IMPORTED_HASH, hash.into())).await?;
    }
    for notice in &imported.notices {
        tracing::warn!("importing definitions: {notice}");
    }
    tracing::info!(objects = imported.objects, "definitions were imported");
    Ok(Answer::Value(json!({"objects": imported.objects, "notices": imported.notices})))
}
