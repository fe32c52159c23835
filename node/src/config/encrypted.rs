//! Values that are encrypted in the file: `encrypted:...`, with the passphrase that `config_entry_decoder.passphrase` gives or names.

use super::problem::Problem;
use super::syntax::Assignment;
use crate::secrets::Scheme;

/// Octets of a file with a passphrase, at most.
const MAX_FILE: u64 = 64 * 1024;
/// What stands before an encrypted value.
const PREFIX: &str = "encrypted:";
/// The keys that say how values are decrypted begin with this.
const DECODER: &str = "config_entry_decoder.";

/// Replaces encrypted values by what they are, and takes out the keys that say how.
pub fn decrypt(assignments: &mut Vec<Assignment>, problems: &mut Vec<Problem>) {
    let (decoder, mut rest): (Vec<_>, Vec<_>) =
        std::mem::take(assignments).into_iter().partition(|assignment| assignment.name().starts_with(DECODER));
    let said = |name: &str| {
        let key = format!("{DECODER}{name}");
        decoder
            .iter()
            .rev()
            .find(|assignment| assignment.name() == key)
            .map_or("", |assignment| assignment.value.as_str())
    };
    for assignment in &decoder {
        let name = assignment.name();
        if !["passphrase", "cipher", "hash", "iterations"].contains(&&name[DECODER.len()..]) {
            problems.push(Problem::new(assignment.origin.clone(), format!("unknown key `{name}`")));
        }
    }
    let how = passphrase(said("passphrase"))
        .and_then(|passphrase| Ok((passphrase, Scheme::new(said("cipher"), said("hash"), said("iterations"))?)));
    if let (Err(why), Some(assignment)) = (&how, decoder.first()) {
        problems.push(Problem::new(assignment.origin.clone(), why.clone()));
    }
    for assignment in rest.iter_mut() {
        let Some(encrypted) = assignment.value.strip_prefix(PREFIX) else { continue };
        let wrong = |why: &str| Problem::new(assignment.origin.clone(), format!("{}: {why}", assignment.name()));
        match &how {
            Ok((None, _)) => {
                problems.push(wrong("the value is encrypted, and config_entry_decoder.passphrase is not set"));
            }
            Ok((Some(passphrase), scheme)) => match scheme.decrypt(encrypted, passphrase) {
                Ok(term) => assignment.value = term.text(),
                Err(why) => problems.push(wrong(&format!("the value cannot be decrypted: {why}"))),
            },
            // Said already.
            Err(_) => {}
        }
    }
    *assignments = rest;
}

/// The passphrase itself, or the first line of a file.
fn passphrase(value: &str) -> Result<Option<String>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let Some(path) = value.strip_prefix("file:") else {
        return match value {
            "prompt" => Err("a passphrase cannot be asked for: give it, or file:PATH".to_owned()),
            passphrase => Ok(Some(passphrase.to_owned())),
        };
    };
    let wrong = |error: std::io::Error| format!("cannot read the passphrase in `{path}`: {error}");
    if std::fs::metadata(path).map_err(wrong)?.len() > MAX_FILE {
        return Err(format!("`{path}` is longer than {MAX_FILE} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(wrong)?;
    Ok(Some(text.lines().next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::syntax::parse;
    use crate::secrets::Term;

    fn values(text: &str) -> (Vec<(String, String)>, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut assignments = parse(text, Path::new("w.conf"), &|_| None, &mut problems);
        decrypt(&mut assignments, &mut problems);
        (assignments.into_iter().map(|assignment| (assignment.name(), assignment.value)).collect(), problems)
    }

    #[test]
    fn encrypted_values_are_read_with_the_passphrase_wherever_it_stands() {
        let value = Scheme::default().encrypt(&Term::Binary(b"guest".to_vec()), "secret", [3; 32]);
        let text =
            format!("default_pass = encrypted:{value}\nconfig_entry_decoder.passphrase = secret\nheartbeat = 5\n");
        let (values, problems) = values(&text);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(values[0], ("default_pass".to_owned(), "guest".to_owned()));
        assert_eq!(values.len(), 2);
    }

    #[test]
    fn what_cannot_be_decrypted_is_a_problem() {
        for text in [
            "default_pass = encrypted:AAAA\n",
            "default_pass = encrypted:AAAA\nconfig_entry_decoder.passphrase = secret\n",
            "config_entry_decoder.passphrase = prompt\n",
            "config_entry_decoder.passphrase = file:/nonexistent\n",
            "config_entry_decoder.nonsense = 1\n",
        ] {
            assert_eq!(values(text).1.len(), 1, "{text}");
        }
    }
}
