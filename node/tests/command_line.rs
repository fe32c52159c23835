//! The command line as scripts see it: exit codes, and what goes to which stream. None of these needs a node.

use std::path::Path;

use assert_cmd::Command;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn warren(arguments: &[&str]) -> Ran {
    run(Command::cargo_bin("warren").unwrap().args(arguments))
}

/// Without the machine's own configuration, nodes and secrets.
fn run(command: &mut Command) -> Ran {
    for name in ["NODENAME", "CONFIG_FILE", "CONFIG_FILES", "DATA_DIR", "MNESIA_BASE", "ERLANG_COOKIE", "NODE_PORT"] {
        command.env_remove(format!("WARREN_{name}")).env_remove(format!("RABBITMQ_{name}"));
    }
    let output = command.env("HOME", "/nonexistent").output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_unknown_column_is_a_usage_error_that_names_it() {
    let ran = warren(&["ctl", "list_queues", "bogus"]);
    assert_eq!(ran.code, Some(64));
    assert!(ran.stderr.contains("bogus"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_mistyped_verb_gets_a_suggestion() {
    let ran = warren(&["ctl", "list_queuess"]);
    assert_eq!(ran.code, Some(64));
    assert!(ran.stderr.contains("list_queues"), "{}", ran.stderr);
}

#[test]
fn wrong_options_formatters_and_counts_are_usage_errors() {
    for arguments in [
        &["ctl"][..],
        &["ctl", "list_queues", "--nope"],
        &["ctl", "list_queues", "--formatter", "erlang"],
        &["ctl", "list_users", "--online"],
        &["ctl", "delete_user"],
        &["ctl", "delete_user", "a", "b"],
        &["ctl", "status", "-t", "soon"],
        &["ctl", "eval", "1."],
        &["queues", "list_users"],
        &["nonsense"],
        &["perf", "amqp091", "--nope"],
        &["perf", "amqp091", "--queues", "0"],
        &["server", "--nope"],
    ] {
        let ran = warren(arguments);
        assert_eq!(ran.code, Some(64), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_versions_succeed() {
    for arguments in
        [&["--help"][..], &["ctl", "--help"], &["ctl", "help"], &["ctl", "list_queues", "--help"], &["--version"]]
    {
        let ran = warren(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {}", ran.stderr);
        assert!(!ran.stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(warren(&["ctl", "version"]).stdout, "4.3.0\n");
}

/// Runs it with a reader that leaves before anything is printed.
fn without_a_reader(arguments: &[&str]) -> Ran {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let errors = writer.try_clone().unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("warren"));
    let mut child = command
        .args(arguments)
        .env("HOME", "/nonexistent")
        .stdin(std::process::Stdio::null())
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .unwrap();
    Ran { code: child.wait().unwrap().code(), stdout: String::new(), stderr: String::new() }
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    for (arguments, code) in [
        (&["ctl", "--help"][..], 0),
        (&["ctl", "help", "list_queues"], 0),
        (&["ctl", "version"], 0),
        (&["--help"], 0),
        (&["ctl", "rename_cluster_node", "a", "b"], 0),
        (&["ctl"], 64),
        (&["ctl", "no_such_verb"], 64),
        (&["ctl", "--data-dir", "/nonexistent", "-n", "no@localhost", "list_queues"], 69),
    ] {
        assert_eq!(without_a_reader(arguments).code, Some(code), "{arguments:?}");
    }
}

#[test]
fn a_password_is_hashed_with_a_new_salt_each_time() {
    let hashed = || warren(&["ctl", "-s", "hash_password", "secret"]);
    let (first, second) = (hashed(), hashed());
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    // Salt of 4 octets and SHA-256 of 32, in base64.
    assert_eq!(first.stdout.trim().len(), 48, "{}", first.stdout);
    assert_ne!(first.stdout, second.stdout);
    let mut command = Command::cargo_bin("warren").unwrap();
    let read = run(command.args(["ctl", "-s", "hash_password"]).write_stdin("secret\n"));
    assert_eq!((read.code, read.stdout.trim().len()), (Some(0), 48), "{}", read.stderr);
    assert_eq!(warren(&["ctl", "hash_password", "x", "--hashing-algorithm", "sha1"]).code, Some(65));
    let mut command = Command::cargo_bin("warren").unwrap();
    assert_eq!(run(command.args(["ctl", "hash_password"]).write_stdin("")).code, Some(65));
}

#[test]
fn a_dry_run_checks_the_arguments_and_asks_nobody() {
    assert_eq!(warren(&["ctl", "--dry-run", "delete_user", "a"]).code, Some(0));
    assert_eq!(warren(&["ctl", "--dry-run", "delete_user"]).code, Some(64));
}

#[test]
fn a_node_that_is_not_there_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    for arguments in [
        &["ctl", "--data-dir", data, "-n", "no@localhost", "status"][..],
        &["ctl", "--data-dir", data, "-n", "no@localhost", "--address", "127.0.0.1:1", "--erlang-cookie", "x", "ping"],
    ] {
        let ran = warren(arguments);
        assert_eq!(ran.code, Some(69), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("no@localhost"), "{}", ran.stderr);
    }
    let ran = warren(&["ctl", "--data-dir", data, "-n", "no@localhost", "await_startup", "-t", "1"]);
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
}

#[test]
fn an_empty_password_from_standard_input_is_refused() {
    let mut command = Command::cargo_bin("warren").unwrap();
    let ran = run(command.args(["ctl", "add_user", "bob"]).write_stdin(""));
    assert_eq!(ran.code, Some(65));
    assert_eq!(warren(&["ctl", "add_user", "", "x"]).code, Some(65));
}

#[test]
fn check_config_lists_every_problem_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "bad.conf",
        "unknown_key = 1\nmax_message_size = 10XB\nssl_options.certfile = /none.pem\n",
    );
    let ran = warren(&["ctl", "check_config", &file]);
    assert_eq!(ran.code, Some(78));
    for expected in ["bad.conf:1:", "unknown_key", "bad.conf:2:", "10XB", "bad.conf:3:", "none.pem"] {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    let file = write(folder.path(), "good.conf", "heartbeat = 30\nnet_ticktime = 60\n");
    let ran = warren(&["ctl", "check_config", &file]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("net_ticktime"), "{}", ran.stderr);
    let server = warren(&["server", "--config", "/no/such/file.conf", "--data-dir", folder.path().to_str().unwrap()]);
    assert_eq!(server.code, Some(78), "{}", server.stderr);
}

#[test]
fn deprecated_verbs_do_nothing_successfully() {
    let ran = warren(&["ctl", "rename_cluster_node", "a", "b"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("DEPRECATED"), "{}", ran.stdout);
    assert_eq!(warren(&["ctl", "rename_cluster_node", "a"]).code, Some(64));
}

#[test]
fn a_link_named_rabbitmqctl_is_that_tool() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("rabbitmqctl");
    std::os::unix::fs::symlink(assert_cmd::cargo::cargo_bin("warren"), &link).unwrap();
    let ran = run(Command::new(&link).args(["rename_cluster_node", "a", "b"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("DEPRECATED"), "{}", ran.stdout);
}

#[test]
fn banners_stay_out_of_machine_formats() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let base = ["ctl", "--data-dir", data, "-n", "no@localhost", "list_queues"];
    let plain = warren(&base);
    assert!(
        plain.stdout.starts_with("Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n"),
        "{}",
        plain.stdout
    );
    for extra in [&["-q"][..], &["-s"], &["--formatter", "csv"], &["--formatter", "json_stream"]] {
        let arguments: Vec<&str> = base.iter().chain(extra).copied().collect();
        assert_eq!(warren(&arguments).stdout, "", "{extra:?}");
    }
}

#[test]
fn verbs_that_begin_so_are_listed_for_shells() {
    let ran = warren(&["ctl", "autocomplete", "list_user"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stdout, "list_user_limits\nlist_user_permissions\nlist_user_topic_permissions\nlist_users\n");
    assert!(warren(&["ctl", "autocomplete"]).stdout.contains("import_definitions\n"));
    assert_eq!(warren(&["ctl", "autocomplete", "--", "--formatt"]).stdout, "--formatter\n");
    assert!(!warren(&["ctl", "autocomplete"]).stdout.contains("eval"));
}

#[test]
fn a_dry_run_checks_the_arguments_and_does_nothing() {
    assert_eq!(warren(&["ctl", "delete_user", "nobody", "--dry-run"]).code, Some(0));
    assert_eq!(warren(&["ctl", "delete_user", "--dry-run"]).code, Some(64));
}

#[test]
fn values_of_configuration_files_are_encrypted_and_read_with_the_passphrase() {
    let folder = tempfile::tempdir().unwrap();
    let encrypted = warren(&["ctl", "-s", "encrypt_conf_value", "wonderland", "key"]);
    assert_eq!(encrypted.code, Some(0), "{}", encrypted.stderr);
    let encrypted = encrypted.stdout.trim().to_owned();
    assert!(encrypted.starts_with("encrypted:") && !encrypted.contains("wonderland"), "{encrypted}");
    assert_eq!(warren(&["ctl", "-s", "decrypt_conf_value", &encrypted, "key"]).stdout, "wonderland\n");
    assert_eq!(warren(&["ctl", "-s", "decrypt_conf_value", &encrypted, "other"]).code, Some(65));
    let encoded = warren(&["ctl", "-s", "encode", "<<\"guest\">>", "key"]).stdout;
    assert_eq!(warren(&["ctl", "-s", "decode", encoded.trim(), "key"]).stdout, "<<\"guest\">>\n");
    for (lines, code) in [
        (format!("default_pass = {encrypted}\nconfig_entry_decoder.passphrase = key\n"), 0),
        (format!("default_pass = {encrypted}\nconfig_entry_decoder.passphrase = other\n"), 78),
        (format!("default_pass = {encrypted}\n"), 78),
    ] {
        let file = write(folder.path(), "w.conf", &lines);
        let ran = warren(&["ctl", "check_config", &file]);
        assert_eq!(ran.code, Some(code), "{lines}: {}", ran.stderr);
        assert!(!ran.stderr.contains("wonderland") && !ran.stdout.contains("wonderland"));
    }
    assert_eq!(warren(&["ctl", "encode", "x", "key", "--cipher", "rot13"]).code, Some(64));
    assert_eq!(warren(&["ctl", "encode", "x", "key", "--iterations", "many"]).code, Some(64));
}

#[test]
fn definitions_that_cannot_be_read_are_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let data = format!("--data-dir={path}");
    for arguments in [
        &["ctl", "import_definitions", "/nonexistent.json", &data][..],
        &["ctl", "import_definitions", path, &data],
        &["ctl", "export_definitions", path, &data],
    ] {
        assert_eq!(warren(arguments).code, Some(65), "{arguments:?}");
    }
    assert_eq!(warren(&["ctl", "export_definitions", "-", "--format", "erlang"]).code, Some(64));
    assert_eq!(warren(&["ctl", "export_definitions"]).code, Some(64));
}

#[test]
fn a_file_with_wrong_definitions_keeps_a_node_from_starting_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let definitions = write(folder.path(), "definitions.json", "{\"users\": [");
    for more in ["", "definitions.skip_if_unchanged = true\n"] {
        let config = write(
            folder.path(),
            "w.conf",
            &format!(
                "load_definitions = {definitions}\nlisteners.tcp = none\npeer.ip = 127.0.0.1\npeer.port = 25999\n{more}"
            ),
        );
        let data = folder.path().join("data");
        let ran =
            warren(&["server", "--config", &config, "--data-dir", data.to_str().unwrap(), "--node", "w@localhost"]);
        assert_eq!(ran.code, Some(78), "{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains("definitions.json"), "{}", ran.stdout);
        assert!(!data.join("w@localhost/metadata").exists());
    }
    let config = write(folder.path(), "x.conf", "load_definitions = /nonexistent.json\n");
    assert_eq!(warren(&["ctl", "check_config", &config]).code, Some(78));
}

#[test]
fn each_name_of_the_binary_is_the_tool_of_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let binary = assert_cmd::cargo::cargo_bin("warren");
    for (name, verb, other) in [
        ("rabbitmqctl", "list_users", "nonsense"),
        ("rabbitmq-diagnostics", "ping", "add_user"),
        ("rabbitmq-queues", "quorum_status", "list_users"),
        ("rabbitmq-upgrade", "help", "list_users"),
    ] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(&binary, &link).unwrap();
        assert_eq!(run(Command::new(&link).args([verb, "--help"])).code, Some(0), "{name} {verb}");
        assert_eq!(run(Command::new(&link).args([other, "--help"])).code, Some(64), "{name} {other}");
    }
}
