use std::path::Path;
use std::time::Duration;

use super::settings::{LeaderLocator, LogFormat, LogLevel, Mechanism, QueueType};
use super::*;

fn load_text(text: &str, variables: &[(&str, &str)]) -> Result<Configuration, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.conf");
    std::fs::write(&file, text).unwrap();
    load_file(&file, variables)
}

fn load_file(file: &Path, variables: &[(&str, &str)]) -> Result<Configuration, Vec<String>> {
    let read = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    let overrides = Overrides {
        config: Some(file.to_owned()),
        data_dir: Some("/data".into()),
        node: Some("w1@localhost".to_owned()),
        long_names: false,
        recreate_flags: None,
    };
    load(&overrides, &Environment::new(&read)).map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let found = load_text("", &[]).unwrap();
    assert_eq!(found.settings.listeners.amqp()[0].to_string(), "[::]:5672");
    assert_eq!(found.settings.peer.port, 25672);
    assert_eq!(found.settings.auth.loopback_users, ["guest"]);
    assert_eq!(found.node.as_str(), "w1@localhost");
}

#[test]
fn a_cluster_of_three_on_one_host_is_read() {
    let text = "
        listeners.tcp.1 = 127.0.0.1:5673   # the first
        listeners.tcp.default = 5674
        cluster_formation.peer_discovery_backend = classic_config
        cluster_formation.classic_config.nodes.10 = w3@localhost:25692
        cluster_formation.classic_config.nodes.2 = w2@localhost:25682
        cluster_formation.classic_config.nodes.1 = w1@localhost:25673
        default_queue_type = quorum
        heartbeat = 30
        metadata_store.leader_wait_timeout = 10s
        max_message_size = 1MiB
        log.console.formatter = json
        log.queue.level = debug
        default_user_tags.monitoring = true
        loopback_users = none
    ";
    let found = load_text(text, &[]).unwrap().settings;
    let listeners: Vec<String> = found.listeners.amqp().iter().map(ToString::to_string).collect();
    assert_eq!(listeners, ["127.0.0.1:5673", "[::]:5674"]);
    let seeds: Vec<&str> = found.cluster.seeds.iter().map(|seed| seed.node.as_str()).collect();
    assert_eq!(seeds, ["w1@localhost", "w2@localhost", "w3@localhost"]);
    assert_eq!(found.peer.port, 25673);
    assert_eq!(found.queues.default_type, QueueType::Quorum);
    assert_eq!(found.amqp091.heartbeat, Duration::from_secs(30));
    assert_eq!(found.metadata.leader_wait_timeout, Duration::from_secs(10));
    assert_eq!(found.limits.max_message_size, 1 << 20);
    assert_eq!(found.log.console.format, LogFormat::Json);
    assert_eq!(found.log.categories, [("queue".to_owned(), LogLevel::Debug)]);
    assert_eq!(found.defaults.tags, ["monitoring"]);
    assert!(found.auth.loopback_users.is_empty());
}

#[test]
fn every_problem_is_listed_with_its_line() {
    let text = "hartbeat = 1\nmax_message_size = 10XB\nssl_options.certfile = /no/such/file.pem\nframe_max = 10\n";
    let problems = load_text(text, &[]).unwrap_err();
    assert_eq!(problems.len(), 4, "{problems:?}");
    assert!(problems[0].contains("w.conf:1:") && problems[0].contains("did you mean `heartbeat`"), "{problems:?}");
    assert!(problems[1].contains("w.conf:2:") && problems[1].contains("10XB"), "{problems:?}");
    assert!(problems[2].contains("w.conf:3:") && problems[2].contains("file.pem"), "{problems:?}");
    assert!(problems[3].contains("w.conf:4:"), "{problems:?}");
}

#[test]
fn known_keys_without_effect_warn_once_and_are_still_checked() {
    let text = "vm_memory_high_watermark.relative = 0.5\nvm_memory_high_watermark.relative = 0.6\nnet_ticktime = 60\n";
    let warnings = load_text(text, &[]).unwrap().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].text.contains("vm_memory_high_watermark.relative"));
    assert!(load_text("management.tcp.port = x\n", &[]).is_err());
    assert_eq!(load_text("quorum_queue.commands_soft_limit = 8\n", &[]).unwrap().warnings.len(), 1);
    assert_eq!(load_text("queue_leader_locator = balanced\n", &[]).unwrap().warnings.len(), 0);
    let both = "queue_leader_locator = client-local\nqueue_master_locator = min-masters\n";
    assert_eq!(load_text(both, &[]).unwrap().settings.queues.leader_locator, LeaderLocator::ClientLocal);
    let old = load_text("queue_master_locator = min-masters\n", &[]).unwrap();
    assert_eq!(old.settings.queues.leader_locator, LeaderLocator::Balanced);
    assert!(load_text("queue_leader_locator = anywhere\n", &[]).is_err());
}

#[test]
fn limits_and_properties_are_read() {
    let text = "
        auth_mechanisms.1 = AMQPLAIN
        auth_failure_delay = 500ms
        tcp_listen_options.sndbuf = 64KiB
        tcp_listen_options.keepalive = true
        channel_max_per_node = 100
        consumer_max_per_channel = infinity
        vhost_max = 3
        server_properties.site = Leiden
        raft.disk_stall_timeout = 5s
    ";
    let found = load_text(text, &[]).unwrap();
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    let settings = found.settings;
    assert_eq!(settings.auth.mechanisms, [Mechanism::AmqPlain]);
    assert_eq!(settings.amqp091.auth_failure_delay, Duration::from_millis(500));
    assert_eq!((settings.listeners.sndbuf, settings.listeners.keepalive), (Some(65_536), true));
    assert_eq!((settings.limits.channels_of_node, settings.limits.consumers_of_channel), (Some(100), None));
    assert_eq!(settings.limits.vhosts, Some(3));
    assert_eq!(settings.amqp091.server_properties, [("site".to_owned(), "Leiden".to_owned())]);
    assert_eq!(settings.disk_stall, Duration::from_secs(5));
    assert!(load_text("raft.disk_stall_timeout = 0\n", &[]).is_err());
    assert!(load_text("auth_mechanisms.1 = EXTERNAL\n", &[]).is_err());
}

#[test]
fn later_values_win() {
    let found = load_text("heartbeat = 10\nheartbeat = 20\nlisteners.tcp = none\nlisteners.tcp.1 = 5\n", &[]).unwrap();
    assert_eq!(found.settings.amqp091.heartbeat, Duration::from_secs(20));
    assert_eq!(found.settings.listeners.amqp().len(), 1);
    let found = load_text("listeners.tcp.1 = 5\nlisteners.tcp = none\n", &[]).unwrap();
    assert!(found.settings.listeners.amqp().is_empty());
}

#[test]
fn a_folder_of_files_comes_after_the_main_file_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("w.conf");
    let more = folder.path().join("conf.d");
    std::fs::create_dir(&more).unwrap();
    std::fs::write(&main, "heartbeat = 1\nchannel_max = 1\n").unwrap();
    std::fs::write(more.join("20-b.conf"), "heartbeat = 3\n").unwrap();
    std::fs::write(more.join("10-a.conf"), "heartbeat = 2\nchannel_max = 2\n").unwrap();
    std::fs::write(more.join("note.txt"), "not read\n").unwrap();
    let found = load_file(&main, &[("RABBITMQ_CONFIG_FILES", more.to_str().unwrap())]).unwrap();
    assert_eq!(found.settings.amqp091.heartbeat, Duration::from_secs(3));
    assert_eq!(found.settings.amqp091.channel_max, 2);
    assert_eq!(found.files.len(), 3);
}

#[test]
fn the_environment_gives_ports_users_and_secrets() {
    let variables = [
        ("WARREN_NODE_PORT", "5675"),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1"),
        ("RABBITMQ_DEFAULT_USER", "ada"),
        ("WARREN_DEFAULT_USER", "bob"),
        ("WARREN_LOG", "debug,queue=error"),
        ("SEED", "s3#cret"),
    ];
    let found = load_text("default_pass = $(SEED)\n", &variables).unwrap().settings;
    assert_eq!(found.listeners.amqp()[0].to_string(), "127.0.0.1:5675");
    assert_eq!(found.peer.port, 25675);
    assert_eq!(found.defaults.user, "bob");
    assert_eq!(found.defaults.pass, "s3#cret");
    assert_eq!(found.log.console.level, LogLevel::Debug);
    assert!(load_text("", &[("WARREN_NODE_PORT", "x")]).is_err());
    assert!(load_text("default_pass = $(NOT_SET)\n", &[]).unwrap_err()[0].contains("NOT_SET"));
}

#[test]
fn a_seed_list_without_this_node_is_ignored_with_a_warning() {
    let found = load_text("cluster_formation.classic_config.nodes.1 = other@localhost\n", &[]).unwrap();
    assert!(found.settings.cluster.seeds.is_empty());
    assert_eq!(found.warnings.len(), 1);
}

#[test]
fn a_missing_file_is_a_problem() {
    assert!(load_file(Path::new("/no/such/warren.conf"), &[]).unwrap_err()[0].contains("/no/such/warren.conf"));
}
