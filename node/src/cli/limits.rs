//! `list_vhost_limits` and `list_user_limits`: the limits of one as an object, or with `--global` those of all as rows.

use serde_json::Value;

use super::Call;
use super::format::{self, Formatter};
use crate::exit::Exit;
use crate::output::print;

/// Whose limits a user's are, where none is named: the user that every cluster begins with.
const DEFAULT_USER: &str = "guest";

/// Asks and prints.
pub async fn list(call: &Call) -> Exit {
    let of_users = call.verb.name == "list_user_limits";
    let global = call.flag("global");
    let one = match (of_users, call.text("user")) {
        (false, _) => call.globals.vhost.as_str(),
        (true, "") => DEFAULT_USER,
        (true, user) => user,
    };
    if !call.globals.quiet && !call.globals.silent && !call.formatter().is_for_programs() {
        match (of_users, global) {
            (true, true) => say!("Listing limits for all users ..."),
            (true, false) => say!("Listing limits for user \"{one}\" ..."),
            (false, true) => say!("Listing limits for all vhosts ..."),
            (false, false) => say!("Listing limits for vhost \"{one}\" ..."),
        }
    }
    let named = [("of", if global { Value::Null } else { Value::from(one) })];
    let answer = match call.call_with(call.verb.name, call.timeout, named).await {
        Ok(answer) => answer,
        Err(failure) => return call.failed(&failure),
    };
    if let Some(refusal) = &answer.refusal {
        return call.refused(refusal);
    }
    if global {
        let formatter = call.globals.formatter.unwrap_or(Formatter::Table);
        let columns = [if of_users { "user" } else { "vhost" }, "limits"].map(str::to_owned);
        print(&format::rows(formatter, &columns, &answer.rows, call.headers()));
        return Exit::Ok;
    }
    let limits = answer.rows.first().and_then(|row| row.get("limits")).and_then(Value::as_str);
    match (limits, call.formatter().is_for_programs()) {
        (Some(limits), _) => print(&format!("{limits}\n")),
        (None, true) => print("{}\n"),
        (None, false) => {}
    }
    Exit::Ok
}
