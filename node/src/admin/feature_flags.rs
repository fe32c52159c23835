//! Feature flags and deprecated features.

use serde_json::json;
use warren_broker::Broker;
use warren_broker::feature_flags::EnableError;
use warren_broker::feature_flags::registry::Properties;

use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, done, row};

/// `list_feature_flags`.
pub async fn list(broker: &Broker) -> Outcome {
    Ok(Answer::Rows(rows(broker).await))
}

/// The flags as `list_feature_flags`, `status` and `cluster_status` show them.
pub async fn rows(broker: &Broker) -> Vec<Row> {
    let states = broker.feature_flags().states().await;
    states.into_iter().filter(|(flag, _)| !flag.is_deprecated()).map(|(flag, state)| of_flag(&flag, state)).collect()
}

fn of_flag(flag: &Properties, state: &str) -> Row {
    row([
        ("name", json!(flag.name)),
        ("state", json!(state)),
        ("stability", json!(flag.stability.word())),
        ("require_level", json!(flag.require_word())),
        ("experiment_level", json!(flag.experiment_word())),
        ("callbacks", json!(flag.callbacks)),
        ("provided_by", json!(flag.provided_by)),
        ("desc", json!(flag.desc)),
        ("doc_url", json!(flag.doc_url)),
    ])
}

/// `enable_feature_flag`.
pub async fn enable(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("name");
    let opt_in = request.flag("opt-in") || request.flag("experimental");
    let flags = broker.feature_flags();
    let outcome = match (name, opt_in) {
        ("all", true) => {
            let text = "`--opt-in` (aliased as `--experimental`) flag is not allowed when enabling all feature flags. \
                        Use --opt-in with a specific feature flag name if you want to enable an experimental feature flag";
            return Err(Refusal::new(Code::Invalid, text));
        }
        ("all", false) => flags.enable_all().await,
        (name, opt_in) => flags.enable(name, opt_in).await,
    };
    match outcome {
        Ok(()) => done(),
        Err(EnableError::Experimental(name)) => {
            let text =
                format!("Feature flag {name} is experimental. If you understand the risk, use --opt-in to enable it");
            Err(Refusal::new(Code::Invalid, text))
        }
        Err(error @ EnableError::Unsupported { .. }) => {
            let text = format!("The feature flag \"{name}\" is not supported by node {}: {error}", broker.name());
            Err(Refusal::new(Code::NotFound, text))
        }
        Err(error) => Err(Refusal::new(Code::Unavailable, error.to_string())),
    }
}

/// `feature_flag_status`: what this node's own task is at.
pub fn status(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("name");
    let progress = broker.feature_flags().controller().progress().filter(|progress| progress.flag == name);
    let rows = progress.into_iter().flat_map(|progress| {
        let of_node = |node: &String| row([("node", json!(node)), ("step", json!(progress.step))]);
        progress.nodes.iter().map(of_node).collect::<Vec<Row>>()
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `list_deprecated_features`, with `--used` those in use.
pub async fn list_deprecated(broker: &Broker, request: &Request) -> Outcome {
    let states = broker.feature_flags().states().await;
    let used = request.flag("used").then(|| broker.feature_flags().used_features());
    let shown = |name: &String| used.as_ref().is_none_or(|used| used.contains(name));
    let rows = states.into_iter().filter(|(feature, _)| shown(&feature.name)).filter_map(|(feature, state)| {
        let phase = feature.phase?;
        Some(row([
            ("name", json!(feature.name)),
            ("deprecation_phase", json!(phase.word())),
            // A feature whose flag is enabled is denied.
            ("state", json!(if state == "enabled" { "denied" } else { "permitted" })),
            ("provided_by", json!(feature.provided_by)),
            ("desc", json!(feature.desc)),
            ("doc_url", json!(feature.doc_url)),
        ]))
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `check_if_any_deprecated_features_are_used`: their names, which the command line judges.
pub fn check_used(broker: &Broker) -> Outcome {
    Ok(Answer::Value(json!({"deprecated_features": broker.feature_flags().used_features()})))
}
