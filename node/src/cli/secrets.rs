//! `encode`, `decode`, `encrypt_conf_value`, `decrypt_conf_value`.

use super::verbs::Secret;
use super::{Call, format};
use crate::exit::Exit;
use crate::secrets::{Scheme, Term};

/// What stands before an encrypted value in a configuration file.
const PREFIX: &str = "encrypted:";

/// Encrypts or decrypts the value.
pub fn run(call: &Call, secret: Secret) -> Exit {
    let (value, passphrase) = (call.text("value"), call.text("passphrase"));
    if value.is_empty() || passphrase.is_empty() {
        complain!("Error:\nvalue and passphrase cannot be empty strings");
        return Exit::Data;
    }
    let scheme = match Scheme::new(call.text("cipher"), call.text("hash"), call.text("iterations")) {
        Ok(scheme) => scheme,
        Err(why) => {
            complain!("Error:\n{why}");
            return Exit::Usage;
        }
    };
    let mut random = [0; 32];
    if let Err(error) = getrandom::fill(&mut random) {
        complain!("Error:\nthere are no random numbers: {error}");
        return Exit::Software;
    }
    let result = match secret {
        Secret::Encode => {
            Ok(format!("{{encrypted,<<\"{}\">>}}", scheme.encrypt(&Term::parse(value), passphrase, random)))
        }
        Secret::EncryptConfValue => {
            let value = Term::Binary(value.as_bytes().to_vec());
            Ok(format!("{PREFIX}{}", scheme.encrypt(&value, passphrase, random)))
        }
        Secret::Decode => {
            let inner = value.strip_prefix("{encrypted,").and_then(|rest| rest.strip_suffix('}')).unwrap_or(value);
            scheme.decrypt(&Term::parse(inner.trim()).text(), passphrase).map(|term| term.to_string())
        }
        Secret::DecryptConfValue => {
            let value = value.strip_prefix(PREFIX).unwrap_or(value);
            scheme.decrypt(value, passphrase).map(|term| term.text())
        }
    };
    match result {
        Ok(text) => {
            super::print(&format::text(call.formatter(), &text));
            Exit::Ok
        }
        Err(why) => {
            complain!("Error:\nFailed to decrypt the value: {why}");
            Exit::Data
        }
    }
}
