//! `check_port_connectivity`: whether the ports that the node says it listens on can be reached from here.

use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{Call, format};
use crate::exit::Exit;

/// Connects to each port.
pub async fn check(call: &Call) -> Exit {
    let answer = match call.call("status", call.timeout).await {
        Ok(answer) => answer,
        Err(failure) => return call.failed(&failure),
    };
    if let Some(refusal) = &answer.refusal {
        return call.refused(refusal);
    }
    let node = &call.target.node;
    let (mut reached, mut missed) = (Vec::new(), Vec::new());
    for listener in answer.value["listeners"].as_array().into_iter().flatten() {
        let Some(port) = listener["port"].as_u64().and_then(|port| u16::try_from(port).ok()) else { continue };
        let host = match (call.text("address"), listener["interface"].as_str().unwrap_or_default()) {
            ("", "" | "::" | "0.0.0.0") => node.host(),
            ("", interface) => interface,
            (address, _) => address,
        };
        let connected = tokio::time::timeout(call.timeout, TcpStream::connect((host, port))).await;
        match connected {
            Ok(Ok(_)) => reached.push(port),
            Ok(Err(_)) | Err(_) => missed.push(listener.clone()),
        }
    }
    if missed.is_empty() {
        let ports: Vec<String> = reached.iter().map(ToString::to_string).collect();
        let text = format!("Successfully connected to ports {} on node {node}.", ports.join(", "));
        if !call.globals.silent {
            super::print(&format::text(call.formatter(), &text));
        }
        return Exit::Ok;
    }
    let line = |listener: &Value| {
        let text = |key: &str| format::cell("", &listener[key]);
        format!("Interface: {}, port: {}, protocol: {}", text("interface"), text("port"), text("protocol"))
    };
    let lines: Vec<String> = missed.iter().map(line).collect();
    let text = format!("Connection to ports of the following listeners on node {node} failed:\n{}", lines.join("\n"));
    if call.formatter().is_for_programs() {
        say!("{}", json!({"result": "error", "message": text, "listeners": missed}));
    }
    complain!("Error:\n{text}");
    Exit::Unavailable
}
