//! A real browser for the tests: Debian's chromium and its driver, through fantoccini.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use axum::http::Method;
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use serde_json::{Value, json};
use url::Url;

use crate::support::*;

/// Browsers that run at once, at most: each takes as many resources as many other tests.
const BROWSERS_MAX: usize = 2;

/// Tests share browsers, because it takes seconds to start one. A test has its browser alone, and finds it as if it had just been
/// started.
static POOL: (Mutex<Pool>, Condvar) = (Mutex::new(Pool { idle: Vec::new(), count: 0 }), Condvar::new());

struct Pool {
    idle: Vec<Session>,
    /// All that run, idle or not.
    count: usize,
}

/// A running browser and its driver.
struct Session {
    runtime: tokio::runtime::Runtime,
    client: Client,
    /// Where tests have been: what pages there have stored is removed before the next test.
    visited: Mutex<BTreeSet<String>>,
    _driver: Driver,
    _profile: Folder,
}

pub struct Browser(Option<Session>);

impl Browser {
    pub fn new() -> Browser {
        let (pool, returned) = &POOL;
        let mut pool = pool.lock().unwrap();
        while pool.idle.is_empty() && pool.count == BROWSERS_MAX {
            pool = returned.wait(pool).unwrap();
        }
        let idle = pool.idle.pop();
        pool.count += usize::from(idle.is_none());
        drop(pool);
        Browser(Some(idle.filter(Session::reset).unwrap_or_else(Session::start)))
    }

    pub fn without_script() -> Browser {
        let browser = Browser::new();
        browser.tell("Emulation.setScriptExecutionDisabled", json!({"value": true}));
        browser
    }

    fn session(&self) -> &Session {
        self.0.as_ref().unwrap()
    }

    fn wait<T, E: std::fmt::Debug>(&self, future: impl Future<Output = Result<T, E>>) -> T {
        self.session().runtime.block_on(future).unwrap()
    }

    pub fn goto(&self, server: &Server, path: &str) {
        self.goto_url(&format!("http://{}{path}", server.address("web.listen")));
    }

    pub fn goto_url(&self, url: &str) {
        let origin = Url::parse(url).unwrap().origin().ascii_serialization();
        self.session().visited.lock().unwrap().insert(origin);
        self.wait(self.session().client.goto(url));
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
        self.wait(self.session().client.refresh());
    }

    pub fn back(&self) {
        self.wait(self.session().client.back());
    }

    pub fn forward(&self) {
        self.wait(self.session().client.forward());
    }

    /// The path and query in the address bar.
    pub fn address(&self) -> String {
        let url = self.wait(self.session().client.current_url());
        url.query().map_or(url.path().to_string(), |query| format!("{}?{query}", url.path()))
    }

    /// Evaluates an expression in the page.
    pub fn value(&self, expression: &str) -> Value {
        self.wait(self.session().client.execute(&format!("return ({expression})"), Vec::new()))
    }

    pub fn run(&self, script: &str) -> Value {
        self.wait(self.session().client.execute(script, Vec::new()))
    }

    /// Runs a script that ends by calling its last argument.
    pub fn run_until_called(&self, script: &str) -> Value {
        self.wait(self.session().client.execute_async(script, Vec::new()))
    }

    /// Waits until an expression is true in the page.
    pub fn until(&self, what: &str, expression: &str) {
        until(what, || self.value(&format!("!!({expression})")).as_bool().filter(|is| *is));
    }

    pub fn click(&self, selector: &str) {
        self.wait(self.wait(self.session().client.find(Locator::Css(selector))).click());
    }

    pub fn type_into(&self, selector: &str, text: &str) {
        self.wait(self.wait(self.session().client.find(Locator::Css(selector))).send_keys(text));
    }

    /// Sends keys to the focused element.
    pub fn press(&self, keys: &str) {
        self.wait(self.wait(self.session().client.active_element()).send_keys(keys));
    }

    /// The visible texts of all matching elements, without JavaScript. None if the page is being replaced.
    pub fn texts(&self, selector: &str) -> Vec<String> {
        let elements = self.wait(self.session().client.find_all(Locator::Css(selector)));
        elements.iter().map_while(|element| self.session().runtime.block_on(element.text()).ok()).collect()
    }

    /// An attribute or property of all matching elements that have it, without JavaScript.
    pub fn attributes(&self, selector: &str, name: &str) -> Vec<String> {
        let elements = self.wait(self.session().client.find_all(Locator::Css(selector)));
        let value = |element: &fantoccini::elements::Element| {
            let attribute = self.session().runtime.block_on(element.attr(name)).ok().flatten();
            attribute.or_else(|| self.session().runtime.block_on(element.prop(name)).ok().flatten())
        };
        elements.iter().filter_map(value).collect()
    }

    pub fn until_texts(&self, selector: &str, expected: &[&str]) {
        until(&format!("{expected:?}"), || (self.texts(selector) == expected).then_some(()));
    }

    pub fn is_displayed(&self, selector: &str) -> bool {
        self.wait(self.wait(self.session().client.find(Locator::Css(selector))).is_displayed())
    }

    pub fn screenshot(&self) -> Vec<u8> {
        self.wait(self.session().client.screenshot())
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

    fn tell(&self, command: &'static str, parameters: Value) {
        self.wait(self.session().client.issue_cmd(DevTools::new(command, parameters)));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // After a test that failed it may be in any state.
        let session = self.0.take().filter(|_| !std::thread::panicking());
        let mut pool = POOL.0.lock().unwrap();
        pool.count -= usize::from(session.is_none());
        pool.idle.extend(session);
        POOL.1.notify_one();
    }
}

impl Session {
    fn start() -> Session {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let profile = Folder::new(&format!("chromium-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let (driver, port) = Driver::start();
        let profile_argument = format!("--user-data-dir={}", profile.path().display());
        let mut arguments: Vec<&str> = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
             --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage \
             --window-size=1280,900 --lang=en"
            .split_whitespace()
            .collect();
        arguments.push(&profile_argument);
        // What a busy machine takes for a page or a script is no fault of theirs.
        let patience = json!({"script": LIMIT.as_millis() as u64, "pageLoad": LIMIT.as_millis() as u64});
        let capabilities = json!({"goog:chromeOptions": {"args": arguments}, "timeouts": patience});
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let connector = hyper_util::client::legacy::connect::HttpConnector::new();
            let mut builder = ClientBuilder::new(connector);
            builder.capabilities(capabilities.as_object().unwrap().clone());
            builder.connect(&format!("http://127.0.0.1:{port}")).await.expect("chromium, from Debian's chromium")
        });
        Session { runtime, client, visited: Mutex::default(), _driver: driver, _profile: profile }
    }

    /// As it was at its start; false if it no longer answers.
    fn reset(&self) -> bool {
        let mut commands = vec![
            DevTools::new("Emulation.setScriptExecutionDisabled", json!({"value": false})),
            DevTools::new("Emulation.clearDeviceMetricsOverride", json!({})),
            DevTools::new("Emulation.setEmulatedMedia", json!({"features": []})),
            DevTools::new("Emulation.setTimezoneOverride", json!({"timezoneId": ""})),
            DevTools::new("Network.clearBrowserCache", json!({})),
        ];
        let stored =
            |origin| DevTools::new("Storage.clearDataForOrigin", json!({"origin": origin, "storageTypes": "all"}));
        commands.extend(std::mem::take(&mut *self.visited.lock().unwrap()).into_iter().map(stored));
        let reset = async {
            self.client.goto("about:blank").await?;
            for command in commands {
                self.client.issue_cmd(command).await?;
            }
            Ok::<(), fantoccini::error::CmdError>(())
        };
        let limited = async { tokio::time::timeout(LIMIT, reset).await };
        matches!(self.runtime.block_on(limited), Ok(Ok(())))
    }
}

/// The driver, started by a shell that ends its whole group, which the browser belongs to, when nobody holds the other end of its
/// input any more: at the latest with the tests' own process.
struct Driver(Child);

impl Driver {
    /// On a port that the system chooses. The driver needs the same port on IPv4 and IPv6, and ends if the second is taken;
    /// then it is started again.
    fn start() -> (Driver, u16) {
        let line = "chromedriver --port=0 </dev/null & exec >/dev/null; cat; kill -KILL 0";
        let mut said = String::new();
        for _ in 0..10 {
            let mut shell = Command::new("sh");
            shell.args(["-c", line]).process_group(0);
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut driver = Driver(shell.spawn().unwrap());
            let mut lines = BufReader::new(driver.0.stdout.take().unwrap()).lines();
            for line in lines.by_ref().map_while(Result::ok) {
                if let Some((_, port)) = line.split_once("successfully on port ") {
                    let port = port.trim_end_matches('.').parse().unwrap();
                    // Keep reading: the driver must not block on a full pipe.
                    std::thread::spawn(move || lines.for_each(drop));
                    return (driver, port);
                }
                said.push_str(&line);
            }
        }
        panic!("chromedriver does not start: {said}");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A command of the browser's DevTools protocol.
#[derive(Debug)]
struct DevTools {
    command: &'static str,
    parameters: Value,
}

impl DevTools {
    fn new(command: &'static str, parameters: Value) -> DevTools {
        DevTools { command, parameters }
    }
}

impl WebDriverCompatibleCommand for DevTools {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/goog/cdp/execute", session.unwrap()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({"cmd": self.command, "params": self.parameters}).to_string()))
    }
}
