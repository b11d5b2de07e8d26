//! A real browser for the tests: Debian's chromium and its driver, through fantoccini, with an empty profile.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::http::Method;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use url::Url;

use crate::support::*;

/// One browser at a time: each takes as many resources as all other tests together.
static TURN: Mutex<()> = Mutex::new(());

pub struct Browser {
    runtime: tokio::runtime::Runtime,
    client: Client,
    driver: Child,
    _profile: Folder,
    _turn: MutexGuard<'static, ()>,
}

impl Browser {
    pub fn new(name: &str) -> Browser {
        Browser::with_preferences(name, json!({}))
    }

    pub fn without_script(name: &str) -> Browser {
        Browser::with_preferences(name, json!({"profile.managed_default_content_settings.javascript": 2}))
    }

    fn with_preferences(name: &str, preferences: Value) -> Browser {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let profile = Folder::new(&format!("chromium-{name}"));
        let (driver, port) = start_driver();
        let profile_argument = format!("--user-data-dir={}", profile.path().display());
        let mut arguments: Vec<&str> = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
             --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
             --window-size=1280,900 --lang=en"
            .split_whitespace()
            .collect();
        arguments.push(&profile_argument);
        let capabilities = json!({"goog:chromeOptions": {"args": arguments, "prefs": preferences}});
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let connector = hyper_util::client::legacy::connect::HttpConnector::new();
            let mut builder = ClientBuilder::new(connector);
            builder.capabilities(capabilities.as_object().unwrap().clone());
            builder.connect(&format!("http://127.0.0.1:{port}")).await.expect("chromium, from Debian's chromium")
        });
        Browser { runtime, client, driver, _profile: profile, _turn: turn }
    }

    fn wait<T, E: std::fmt::Debug>(&self, future: impl Future<Output = Result<T, E>>) -> T {
        self.runtime.block_on(future).unwrap()
    }

    pub fn goto(&self, server: &Server, path: &str) {
        self.goto_url(&format!("http://{}{path}", server.address("web.listen")));
    }

    pub fn goto_url(&self, url: &str) {
        self.wait(self.client.goto(url));
    }

    /// Opens a page and waits until its script shows the list.
    pub fn goto_live(&self, server: &Server, path: &str) {
        self.goto(server, path);
        self.until_live();
    }

    pub fn until_live(&self) {
        self.until(
            "the page to be live",
            "document.querySelector('#live[data-state=live]') && document.documentElement.matches('.scripted')",
        );
    }

    pub fn reload(&self) {
        self.wait(self.client.refresh());
    }

    pub fn back(&self) {
        self.wait(self.client.back());
    }

    pub fn forward(&self) {
        self.wait(self.client.forward());
    }

    /// The path and query in the address bar.
    pub fn address(&self) -> String {
        let url = self.wait(self.client.current_url());
        url.query().map_or(url.path().to_string(), |query| format!("{}?{query}", url.path()))
    }

    /// Evaluates an expression in the page.
    pub fn value(&self, expression: &str) -> Value {
        self.wait(self.client.execute(&format!("return ({expression})"), Vec::new()))
    }

    pub fn run(&self, script: &str) -> Value {
        self.wait(self.client.execute(script, Vec::new()))
    }

    /// Runs a script that ends by calling its last argument.
    pub fn run_until_called(&self, script: &str) -> Value {
        self.wait(self.client.execute_async(script, Vec::new()))
    }

    /// Waits until an expression is true in the page.
    pub fn until(&self, what: &str, expression: &str) {
        until(what, || self.value(&format!("!!({expression})")).as_bool().filter(|is| *is));
    }

    pub fn click(&self, selector: &str) {
        self.wait(self.wait(self.client.find(Locator::Css(selector))).click());
    }

    pub fn type_into(&self, selector: &str, text: &str) {
        self.wait(self.wait(self.client.find(Locator::Css(selector))).send_keys(text));
    }

    /// Sends keys to the focused element.
    pub fn press(&self, keys: &str) {
        self.wait(self.wait(self.client.active_element()).send_keys(keys));
    }

    /// The visible texts of all matching elements, without JavaScript. None if the page is being replaced.
    pub fn texts(&self, selector: &str) -> Vec<String> {
        let elements = self.wait(self.client.find_all(Locator::Css(selector)));
        elements.iter().map_while(|element| self.runtime.block_on(element.text()).ok()).collect()
    }

    /// An attribute or property of all matching elements that have it, without JavaScript.
    pub fn attributes(&self, selector: &str, name: &str) -> Vec<String> {
        let elements = self.wait(self.client.find_all(Locator::Css(selector)));
        let value = |element: &fantoccini::elements::Element| {
            let attribute = self.runtime.block_on(element.attr(name)).ok().flatten();
            attribute.or_else(|| self.runtime.block_on(element.prop(name)).ok().flatten())
        };
        elements.iter().filter_map(value).collect()
    }

    pub fn until_texts(&self, selector: &str, expected: &[&str]) {
        until(&format!("{expected:?}"), || (self.texts(selector) == expected).then_some(()));
    }

    pub fn is_displayed(&self, selector: &str) -> bool {
        self.wait(self.wait(self.client.find(Locator::Css(selector))).is_displayed())
    }

    pub fn screenshot(&self) -> Vec<u8> {
        self.wait(self.client.screenshot())
    }

    /// Sets the window's size and the colour scheme.
    pub fn look(&self, width: u32, height: u32, scheme: &str) {
        let is_phone = width < 600;
        self.tell("Emulation.setDeviceMetricsOverride", json!({"width": width, "height": height, "deviceScaleFactor": if is_phone { 2 } else { 1 }, "mobile": is_phone}));
        self.tell(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        );
    }

    pub fn in_time_zone(&self, zone: &str) {
        self.tell("Emulation.setTimezoneOverride", json!({"timezoneId": zone}));
    }

    fn tell(&self, command: &str, parameters: Value) {
        self.wait(self.client.issue_cmd(DevTools { command: command.into(), parameters }));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.runtime.block_on(self.client.clone().close());
        // Processes that the driver has left behind are in its group.
        let group = nix::unistd::Pid::from_raw(self.driver.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.driver.wait();
    }
}

/// Starts the driver on a port that the system chooses. It needs the same port on IPv4 and IPv6, and ends if the second is
/// taken; then it is started again.
fn start_driver() -> (Child, u16) {
    let mut said = String::new();
    for _ in 0..10 {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver, from Debian's chromium-driver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        for line in lines.by_ref().map_while(Result::ok) {
            if let Some((_, port)) = line.split_once("successfully on port ") {
                // Keep reading: the driver must not block on a full pipe.
                std::thread::spawn(move || lines.for_each(drop));
                return (driver, port.trim_end_matches('.').parse().unwrap());
            }
            said.push_str(&line);
        }
        let _ = driver.kill();
        let _ = driver.wait();
    }
    panic!("chromedriver does not start: {said}");
}

/// A command of the browser's DevTools protocol.
#[derive(Debug)]
struct DevTools {
    command: String,
    parameters: Value,
}

impl WebDriverCompatibleCommand for DevTools {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"cmd": self.command, "params": self.parameters}).to_string()))
    }
}
