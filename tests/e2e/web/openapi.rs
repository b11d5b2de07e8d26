//! The OpenAPI document, by other projects' programs: schemathesis finds nothing wrong with the API, and clients that are generated
//! from the document work. `scripts/test` installs these programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::*;
use crate::web::api::three;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/openapi").join(name)
}

/// A Python program that `scripts/test` installs.
fn python(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", tool("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    if !program.is_empty() {
        command.arg(tool("python/bin").join(program));
    }
    command
}

fn modules() -> PathBuf {
    tool("npm/node_modules").canonicalize().unwrap()
}

/// Runs a command that has to succeed, and returns what it prints.
fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {said}");
    said
}

/// A master with some servers and a history, whose budgets are not for a program that asks hundreds of times.
fn master(folder: &Folder) -> (Server, String) {
    let data = format!("data_dir={}", folder.path().join("data").display());
    let server = Server::start(&[&data, "guard.exempt=127.0.0.0/8"]);
    three(&server);
    let url = format!("http://{}", server.address("web.listen"));
    (server, url)
}

#[test]
#[ignore = "needs schemathesis"]
fn schemathesis_finds_nothing() {
    let folder = Folder::new("schemathesis");
    let (_server, url) = master(&folder);
    let mut command = python("schemathesis");
    command.arg("--config-file").arg(data("schemathesis.toml"));
    command.args(["run", &format!("{url}/api/v1/openapi.json"), "--max-examples", "15"]);
    let said = run(command.current_dir(folder.path()));
    assert!(said.contains("9 selected / 11 total"), "{said}");
}

#[test]
#[ignore = "needs openapi-python-client"]
fn a_python_client_made_from_the_document_works() {
    let folder = Folder::new("python-client");
    let (_server, url) = master(&folder);
    let settings = "package_name_override: rallypoint_client\npost_hooks: []\n\
                    content_type_overrides:\n  image/svg+xml: application/octet-stream\n";
    let settings = folder.write("settings.yaml", settings);
    let mut command = python("openapi-python-client");
    command.args(["generate", "--url", &format!("{url}/api/v1/openapi.json"), "--fail-on-warning", "--meta", "none"]);
    command.arg("--config").arg(settings).arg("--output-path").arg(folder.path().join("rallypoint_client"));
    run(command.current_dir(folder.path()));
    let path = std::env::join_paths([folder.path(), &tool("python")]).unwrap();
    let said = run(python("").env("PYTHONPATH", path).arg(data("client.py")).arg(&url));
    assert!(said.starts_with("works"), "{said}");
}

#[test]
#[ignore = "needs openapi-typescript"]
fn a_typescript_client_made_from_the_document_works() {
    let folder = Folder::new("typescript-client");
    let (_server, url) = master(&folder);
    let modules = modules();
    std::os::unix::fs::symlink(&modules, folder.path().join("node_modules")).unwrap();
    std::fs::copy(data("client.ts"), folder.path().join("client.ts")).unwrap();
    folder.write("package.json", r#"{"type": "module"}"#);
    let settings = serde_json::json!({
        "compilerOptions": {
            "strict": true, "noUncheckedIndexedAccess": true, "skipLibCheck": true, "types": [], "target": "es2022",
            "module": "nodenext", "lib": ["es2022", "dom"], "outDir": "out",
        },
        "files": ["client.ts"],
    });
    folder.write("tsconfig.json", &settings.to_string());
    let node = |program: &str| {
        let mut command = Command::new("node");
        command.arg(modules.join(program)).current_dir(folder.path());
        command
    };
    run(node("openapi-typescript/bin/cli.js").args([&format!("{url}/api/v1/openapi.json"), "-o", "schema.d.ts"]));
    run(&mut node("typescript/bin/tsc"));
    let said = run(Command::new("node").args(["out/client.js", &url]).current_dir(folder.path()));
    assert!(said.starts_with("works"), "{said}");
}
