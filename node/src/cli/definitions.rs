//! `export_definitions` and `import_definitions`.

use std::io::{Read as _, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::Call;
use super::format::Formatter;
use crate::boot_definitions::read;
use crate::exit::Exit;
use crate::output::print;

/// Octets of standard input, at most: as of a file.
const MAX_INPUT: u64 = 192 << 20;

/// Writes the cluster's definitions to a file, or to standard output, which then has nothing else.
pub async fn export(call: &Call) -> Exit {
    let file = call.text("file");
    // Before anything is asked: a path that cannot be written to is no reason to keep a node busy.
    if file != "-" && Path::new(file).is_dir() {
        complain!("Error:\n`{file}` is a folder");
        return Exit::Data;
    }
    let answer = match call.call(call.verb.name, call.timeout).await {
        Ok(answer) => answer,
        Err(failure) => return call.failed(&failure),
    };
    if let Some(refusal) = &answer.refusal {
        return call.refused(refusal);
    }
    if file == "-" {
        print(&answer.text);
        return Exit::Ok;
    }
    if let Err(error) = store(Path::new(file), &answer.text) {
        complain!("Error:\ncannot write `{file}`: {error}");
        return Exit::Data;
    }
    done(call, json!({}))
}

/// Through a file beside it: an export that breaks off leaves no half of one.
fn store(path: &Path, text: &str) -> std::io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let written = std::fs::File::create(part).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let stored = written.and_then(|()| std::fs::rename(part, path));
    if stored.is_err() {
        let _ = std::fs::remove_file(part);
    }
    stored
}

/// Has the node import a file, or standard input, and waits until all of it is there.
pub async fn import(call: &Call) -> Exit {
    let file = call.text("file");
    let text = match file {
        "" | "-" => {
            let mut text = Vec::new();
            let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut text);
            read.and_then(|_| match text.len() as u64 {
                ..=MAX_INPUT => Ok(text),
                _ => Err(std::io::Error::other(format!("longer than {MAX_INPUT} bytes"))),
            })
        }
        file => read(Path::new(file)),
    };
    let what = if file.is_empty() || file == "-" { "standard input" } else { file };
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            complain!("Error:\ncannot read `{what}`: {error}");
            return Exit::Data;
        }
    };
    let Ok(text) = String::from_utf8(text) else {
        complain!("Error:\n`{what}` is not UTF-8 text");
        return Exit::Data;
    };
    let answer = match call.call_with(call.verb.name, call.timeout, [("document", Value::from(text))]).await {
        Ok(answer) => answer,
        Err(failure) => return call.failed(&failure),
    };
    if let Some(refusal) = &answer.refusal {
        return call.refused(refusal);
    }
    for notice in answer.value["notices"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        complain!("Warning: {notice}");
    }
    done(call, answer.value)
}

/// Says that it was done, unless nobody wants to know.
fn done(call: &Call, told: Value) -> Exit {
    match call.formatter() {
        Formatter::Json | Formatter::JsonStream => {
            let mut text = json!({"result": "ok", "node": call.target.node.as_str()});
            if let (Value::Object(text), Value::Object(told)) = (&mut text, told) {
                text.extend(told);
            }
            print(&format!("{text}\n"));
        }
        _ if call.globals.quiet || call.globals.silent || call.verb.name == "export_definitions" => {}
        formatter if told["unchanged"] == true => {
            print(&super::format::text(
                formatter,
                "The definitions are those of the last import: nothing was imported",
            ));
        }
        formatter => {
            let text = format!("Successfully imported definitions: {} objects", told["objects"]);
            print(&super::format::text(formatter, &text));
        }
    }
    Exit::Ok
}
