//! The screen on a made-up terminal: what is drawn, and what keys do.

use super::*;
use crate::client::CountryCode;
use crate::model::{Details, Facts, Game, Player};
use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn server(port: u16, name: &'static str, players: u16) -> Found {
    let details = Details {
        players: vec![Player { name: "Ann".into(), score: Some(14), ..Player::default() }],
        rules: [("fraglimit", "20")].into(),
    };
    let facts = Facts {
        name: name.into(),
        map: "Two clans".into(),
        players_current: Some(players),
        players_max: Some(8),
        details: Some(Arc::new(details)),
        ..Facts::default()
    };
    Found { facts, ..Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap()) }
}

fn drawn(screen: &mut Screen) -> String {
    drawn_on(screen, 90, 18)
}

fn drawn_on(screen: &mut Screen, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Action {
    let presses = keys.iter().map(|key| screen.on(&Event::Key(KeyEvent::from(*key))));
    presses.last().unwrap()
}

fn typed(screen: &mut Screen, text: &str) {
    for typed in text.chars() {
        press(screen, &[KeyCode::Char(typed)]);
    }
}

fn of(masters: &[&str]) -> Screen {
    let masters = masters.iter().map(|master| master.to_string()).collect();
    Screen::new(Setup { masters, queries: true, ..Setup::default() }, Favourites::default())
}

fn with(found: Vec<Found>) -> Screen {
    let mut screen = of(&["netpanzer://master"]);
    screen.refresh_finished(found);
    screen
}

fn fail(screen: &mut Screen, why: &str) {
    screen.fails(&[("netpanzer://master".into(), why.into())]);
}

fn three() -> Screen {
    with(vec![server(1, "Alpha", 0), server(2, "beta", 5), server(3, "Gamma", 8)])
}

/// Where each text is on the screen, from the top.
fn lines(text: &str, shown: &str) -> Vec<usize> {
    shown.lines().enumerate().filter(|(_, line)| line.contains(text)).map(|(number, _)| number).collect()
}

#[test]
fn the_list_with_most_players_first() {
    let mut screen = three();
    let shown = drawn(&mut screen);
    assert!(shown.contains("netpanzer://master ") && shown.contains("3 servers, 13 players, by players"), "{shown}");
    let places = ["Gamma", "beta", "Alpha"].map(|name| lines(name, &shown)[0]);
    assert!(places.is_sorted(), "{shown}");
    assert!(shown.contains("203.0.113.5:2"), "the address: {shown}");
    assert!(shown.contains("5/8") && shown.contains("Two clans") && shown.contains("q quit"), "{shown}");
    assert_eq!(press(&mut screen, &[KeyCode::Char('r')]), Action::Refresh);
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Action::Quit);
}

#[test]
fn keys_sort_leave_out_and_search() {
    let mut screen = three();
    typed(&mut screen, "s");
    let shown = drawn(&mut screen);
    assert!(shown.contains("by map"), "{shown}");
    typed(&mut screen, "ef");
    let shown = drawn(&mut screen);
    assert!(shown.contains("1 server, 5 players") && shown.contains("beta") && !shown.contains("Gamma"), "{shown}");
    typed(&mut screen, "ef/GAM");
    let shown = drawn(&mut screen);
    assert!(shown.contains("/GAM▏") && shown.contains("Gamma") && !shown.contains("beta"), "{shown}");
    typed(&mut screen, "q");
    assert!(drawn(&mut screen).contains("No servers match."));
    press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
    assert!(drawn(&mut screen).contains("Gamma"));
    assert_eq!(press(&mut screen, &[KeyCode::Esc]), Action::Nothing);
    assert!(drawn(&mut screen).contains("3 servers"));
    // Over a slow line an arrow key arrives as Esc and two characters.
    assert_eq!(press(&mut screen, &[KeyCode::Esc, KeyCode::Char('['), KeyCode::Char('B')]), Action::Nothing);
}

#[test]
fn the_selected_server_stays_chosen_and_opens() {
    let mut screen = three();
    press(&mut screen, &[KeyCode::Down]);
    screen.refresh_finished(vec![server(2, "beta", 8), server(4, "new", 1), server(3, "Gamma", 2)]);
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("netpanzer://203.0.113.5:2") && shown.contains("fraglimit"), "{shown}");
    assert!(shown.contains("Ann  14"), "{shown}");
    press(&mut screen, &[KeyCode::Esc, KeyCode::End, KeyCode::PageUp, KeyCode::Home, KeyCode::Up]);
    fail(&mut screen, "it is gone");
    let shown = drawn(&mut screen);
    assert!(shown.contains("it is gone") && shown.contains("beta"), "what was known stays: {shown}");
    screen.refresh_finished(Vec::new());
    press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
    assert!(drawn(&mut screen).contains("No servers are listed."));
}

fn many(count: u16) -> Vec<Found> {
    (1..=count).map(|port| server(port, "Many", 1)).collect()
}

#[test]
fn a_terminal_that_grows_has_no_blank_rows() {
    let mut screen = with(many(30));
    press(&mut screen, &[KeyCode::End]);
    let shown = drawn_on(&mut screen, 80, 10);
    assert_eq!(lines("Many", &shown).len(), 6, "{shown}");
    let shown = drawn_on(&mut screen, 80, 24);
    assert_eq!(lines("Many", &shown).len(), 19, "{shown}");
    // Nor has a list that shrinks.
    screen.refresh_finished(many(19));
    let shown = drawn_on(&mut screen, 80, 24);
    assert_eq!(lines("Many", &shown).len(), 19, "{shown}");
}

#[test]
fn every_size_can_be_drawn() {
    let mut screen = with(many(30));
    let error = "a reason that is longer than a line of a small terminal, and goes on for a while";
    fail(&mut screen, error);
    for keys in ["", "\n", "?", " J", "n/abc", "\n"] {
        for key in keys.chars() {
            press(&mut screen, &[if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) }]);
        }
        for (columns, rows) in (0..40).flat_map(|columns| (0..16).map(move |rows| (columns, rows))) {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
        }
    }
}

#[test]
fn the_list_is_there_before_the_answers_and_each_row_as_it_comes() {
    let mut screen = of(&["netpanzer://master"]);
    screen.refresh_started();
    assert!(drawn(&mut screen).contains("Waiting for the list."));
    let named = |port: u16| Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap());
    screen.listed(vec![named(1), named(2)]);
    let shown = drawn(&mut screen);
    assert_eq!(lines("(querying)", &shown).len(), 2, "{shown}");
    assert!(shown.contains("querying 2") && shown.contains("203.0.113.5:1"), "{shown}");
    screen.answered(&[server(2, "beta", 5)]);
    let shown = drawn(&mut screen);
    assert!(
        shown.contains("querying 1") && shown.contains("beta") && lines("(querying)", &shown).len() == 1,
        "{shown}"
    );
    let silent = Found { state: State::Failed("no answer".into()), ..named(1) };
    screen.refresh_finished(vec![silent, server(2, "beta", 5)]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("(no answer)") && shown.contains("silent") && shown.contains("0 s ago"), "{shown}");
    // The next look takes away nothing that is known.
    screen.refresh_started();
    screen.listed(vec![named(1), named(2), named(3)]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("beta") && shown.contains("silent") && lines("(querying)", &shown).len() == 1, "{shown}");
    // Nor does silence the name.
    let silent = Found { state: State::Failed("no answer".into()), ..named(2) };
    screen.answered(&[silent]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("beta") && !shown.contains("5/8") && lines("silent", &shown).len() == 2, "{shown}");
}

#[test]
fn the_first_row_is_chosen_until_somebody_chooses() {
    let mut screen = with(vec![server(1, "Alpha", 1)]);
    screen.refresh_finished(vec![server(1, "Alpha", 1), server(2, "beta", 5)]);
    assert_eq!(screen.selected_server().map(|server| server.address.port()), Some(2));
    press(&mut screen, &[KeyCode::Down]);
    screen.refresh_finished(vec![server(1, "Alpha", 9), server(2, "beta", 5)]);
    assert_eq!(screen.selected_server().map(|server| server.address.port()), Some(1));
}

#[test]
fn errors_are_whole() {
    let words: Vec<String> = (1..=30).map(|number| format!("word{number}")).collect();
    let mut screen = three();
    fail(&mut screen, &words.join(" "));
    let shown = drawn_on(&mut screen, 60, 24);
    assert!(words.iter().all(|word| shown.contains(word.as_str())), "{shown}");
    screen.fails(&[]);
    let failed = Found { state: State::Failed(words.join(" ")), ..server(1, "Alpha", 1) };
    screen.refresh_finished(vec![failed]);
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn_on(&mut screen, 60, 24);
    assert!(words.iter().all(|word| shown.contains(word.as_str())), "{shown}");
}

#[test]
fn long_details_scroll() {
    let rules = (1..=40).map(|number| (format!("rule{number}"), "on")).collect();
    let mut one = server(1, "Alpha", 1);
    one.facts.details = Some(Arc::new(Details { players: Vec::new(), rules }));
    let mut screen = with(vec![one]);
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("rule1 ") && !shown.contains("rule40") && shown.contains("of 44 lines"), "{shown}");
    for _ in 0..9 {
        press(&mut screen, &[KeyCode::PageDown]);
        drawn_on(&mut screen, 80, 24);
    }
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("rule40") && shown.contains("44 of 44 lines"), "{shown}");
    press(&mut screen, &[KeyCode::PageUp; 9]);
    assert!(drawn_on(&mut screen, 80, 24).contains("rule1 "));
}

#[test]
fn help_names_every_key_and_long_names_are_cut() {
    let mut screen = with(vec![server(1, "A server with a name that is far too long for any list on a terminal", 1)]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("far too… ") && shown.contains(" 203.0.113.5:1"), "{shown}");
    typed(&mut screen, "?");
    let shown = drawn_on(&mut screen, 80, 24);
    for (keys, what) in KEYS {
        assert!(shown.contains(keys) && shown.contains(what), "{keys}: {shown}");
    }
    typed(&mut screen, "q");
    assert!(!drawn_on(&mut screen, 80, 24).contains("Ctrl-Z"), "any key closes it");
    let control = |key| Event::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL));
    let actions = ['c', 'z', 'l', 'x'].map(|key| screen.on(&control(key)));
    assert_eq!(actions, [Action::Quit, Action::Suspend, Action::Redraw, Action::Nothing]);
    assert_eq!(screen.on(&Event::Resize(80, 24)), Action::Redraw);
}

#[test]
fn details_on_a_low_terminal_show_a_line_at_least() {
    let mut screen = three();
    press(&mut screen, &[KeyCode::Enter]);
    for rows in 8..=14 {
        let shown = drawn_on(&mut screen, 40, rows);
        assert_eq!(lines("netpanzer://203.0.113.5:3", &shown).len(), 1, "{rows}:\n{shown}");
        assert!(lines("Gamma", &shown).len() >= 2, "the row and the frame, at {rows}:\n{shown}");
    }
}

fn mouse(kind: MouseEventKind, column: u16, row: u16) -> Event {
    Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE })
}

#[test]
fn a_click_selects_or_sorts_and_the_wheel_scrolls() {
    let mut screen = with(many(30));
    drawn_on(&mut screen, 80, 24);
    let click = |screen: &mut Screen, column, row| {
        screen.on(&mouse(MouseEventKind::Down(MouseButton::Left), column, row));
        let shown = drawn_on(screen, 80, 24);
        (screen.selected, screen.sort, shown)
    };
    // The first line is the head, then counts, titles, and the first server.
    assert_eq!(click(&mut screen, 5, 6).0, 3);
    assert_eq!(click(&mut screen, 5, 0).0, 3, "the head");
    assert_eq!(click(&mut screen, 5, 23).0, 3, "the last line");
    let (_, sort, shown) = click(&mut screen, 0, 2);
    assert!(sort == Sort::Name && shown.contains("by name"), "{shown}");
    let title = shown.lines().nth(2).unwrap().find("Address").unwrap() as u16 - 1; // after a quotation mark
    let (_, sort, shown) = click(&mut screen, title, 2);
    assert!(sort == Sort::Address && shown.contains("by address"), "{shown}");
    screen.on(&mouse(MouseEventKind::ScrollDown, 5, 6));
    assert_eq!(screen.selected, 6);
    screen.on(&mouse(MouseEventKind::ScrollUp, 5, 6));
    assert_eq!(screen.selected, 3);
    // In a short list there are places without a server.
    let mut screen = three();
    drawn_on(&mut screen, 80, 24);
    assert_eq!(click(&mut screen, 5, 15).0, 0);
    // Questions and the help are answered with keys.
    typed(&mut screen, "?");
    assert_eq!(click(&mut screen, 5, 4).0, 0);
    typed(&mut screen, "?");
    assert_eq!(click(&mut screen, 5, 4).0, 1);
}

#[test]
fn joining_is_asked_first() {
    let mut screen = three();
    let action = press(&mut screen, &[KeyCode::Char('J')]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(action == Action::Nothing && shown.contains("Run this? y n: netpanzer --connect=203.0.113.5:3"), "{shown}");
    assert_eq!(press(&mut screen, &[KeyCode::Char('n')]), Action::Nothing);
    assert!(drawn(&mut screen).contains("q quit"));
    assert_eq!(press(&mut screen, &[KeyCode::Char('y')]), Action::Copy("netpanzer --connect=203.0.113.5:3".into()));
    let command = vec!["netpanzer".to_string(), "--connect=203.0.113.5:3".into()];
    assert_eq!(press(&mut screen, &[KeyCode::Char('J'), KeyCode::Char('y')]), Action::Join(command));
    // The whole question is on the screen, however narrow.
    press(&mut screen, &[KeyCode::Char('J')]);
    let shown = drawn_on(&mut screen, 30, 24);
    assert!(shown.contains("Run this? y n: netpanzer") && shown.contains("--connect=203.0.113.5:3"), "{shown}");
    // What happens to the list meanwhile changes nothing about the question.
    screen.refresh_finished(vec![server(9, "new", 9)]);
    assert!(matches!(press(&mut screen, &[KeyCode::Enter]), Action::Join(words) if words[1].ends_with(":3")));
    let unknown = Found::new(Game::Own("hyperbol"), "203.0.113.5:20200".parse().unwrap());
    let mut screen = with(vec![unknown]);
    press(&mut screen, &[KeyCode::Char('J')]);
    assert!(drawn(&mut screen).contains("No command is known that joins this game"));
    assert_eq!(press(&mut screen, &[KeyCode::Char('c')]), Action::Copy("203.0.113.5:20200".into()));
    assert!(drawn(&mut screen).contains("Copied 203.0.113.5:20200"));
    press(&mut screen, &[KeyCode::Up]);
    assert!(drawn(&mut screen).contains("q quit"), "a key ends the note");
    assert_eq!(press(&mut with(Vec::new()), &[KeyCode::Char('J'), KeyCode::Char('c')]), Action::Nothing);
}

#[test]
fn favourites_are_on_top_and_marked() {
    let folder = std::env::temp_dir().join(format!("rallypoint-screen-favourites-{}", std::process::id()));
    let path = folder.join("favourites");
    let load = || Favourites::at(Some(path.clone())).0;
    let mut screen = Screen::new(Setup { masters: vec!["a".into()], ..Setup::default() }, load());
    screen.refresh_finished(vec![server(1, "Alpha", 0), server(2, "beta", 5), server(3, "Gamma", 8)]);
    press(&mut screen, &[KeyCode::End, KeyCode::Char('*')]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("★ Alpha") && lines("Alpha", &shown)[0] < lines("Gamma", &shown)[0], "{shown}");
    assert!(shown.contains("203.0.113.5:1 is a favourite"), "{shown}");
    assert_eq!(screen.selected_server().map(|server| server.address.port()), Some(1), "it stays selected");
    let mut again = Screen::new(Setup { masters: vec!["a".into()], ..Setup::default() }, load());
    again.refresh_finished(vec![server(2, "beta", 5), server(1, "Alpha", 0)]);
    assert!(drawn(&mut again).contains("★ Alpha"));
    press(&mut screen, &[KeyCode::Char('*')]);
    assert!(!drawn(&mut screen).contains('★'));
    std::fs::remove_dir_all(folder).unwrap();
    // Without a folder to keep them in, it says so.
    let mut screen = three();
    press(&mut screen, &[KeyCode::Char('*')]);
    assert!(drawn(&mut screen).contains("Favourites cannot be kept: neither XDG_CONFIG_HOME nor HOME"));
}

#[test]
fn several_masters() {
    let mut screen = of(&["http://one.example", "netpanzer://two.example"]);
    let mut both = server(1, "Alpha", 1);
    both.masters.insert(0);
    both.masters.insert(1);
    both.country = CountryCode::from("DE").ok();
    (both.rtt_us, both.master_rtt_us, both.state) = (Some(31_000), Some(9_000), State::Answered);
    screen.refresh_finished(vec![both]);
    screen.fails(&[("netpanzer://two.example".into(), "it did not answer in time".into())]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("1 http://one.example  2 netpanzer://two.example"), "{shown}");
    let failure = "netpanzer://two.example failed and is tried again: it did not answer in time";
    assert!(shown.contains(failure), "{shown}");
    let row = shown.lines().nth(lines("Alpha", &shown)[0]).unwrap();
    assert!(row.contains(" DE ") && row.contains("31 ms") && row.contains("1 2"), "{shown}");
    let titles = shown.lines().nth(lines("Ping here", &shown)[0]).unwrap();
    assert!(titles.contains("CC") && titles.contains("Masters"), "{shown}");
    let shown = drawn_on(&mut screen, 100, 24);
    assert!(shown.contains("Master's") && shown.contains("9 ms"), "{shown}");
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn_on(&mut screen, 100, 24);
    assert!(shown.contains("ping from here    31 ms") && shown.contains("master's ping     9 ms"), "{shown}");
    assert_eq!(lines("listed by", &shown).len(), 2, "{shown}");
}

#[test]
fn players_over_time() {
    let mut screen = three();
    screen.refresh_finished(vec![server(3, "Gamma", 4)]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("Players since the start █▅ most 8"), "{shown}");
    let mut with_history = Masters::default();
    with_history.insert(0);
    let mut screen = Screen::new(Setup { with_history, ..Setup::default() }, Favourites::default());
    let mut found = server(3, "Gamma", 4);
    found.masters.insert(0);
    screen.refresh_finished(vec![found]);
    let now = Instant::now();
    assert_eq!(screen.wanted_history(now), None, "moving through the list fetches none");
    assert!(screen.history_due().is_some());
    typed(&mut screen, "/nobody");
    assert_eq!((screen.wanted_history(now), screen.history_due()), (None, None), "nothing is shown");
    press(&mut screen, &[KeyCode::Esc]);
    assert_eq!(screen.wanted_history(now), None);
    let wanted = screen.wanted_history(now + Duration::from_secs(1)).unwrap();
    let points = (0..24).map(|hour| (hour * 3_600, hour as f32)).collect();
    screen.history_arrived(&wanted, Some(History { from_s: 0, to_s: 86_400, points }), now);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("Players in 24 h ▁") && shown.contains("most 23"), "{shown}");
    let shown = drawn_on(&mut screen, 80, 11);
    assert!(!shown.contains("24 h"), "no room: {shown}");
}

#[test]
fn without_unicode_everything_is_ascii() {
    let setup = Setup { masters: vec!["a".into()], ascii: true, ..Setup::default() };
    let mut screen = Screen::new(setup, Favourites::default());
    screen.refresh_finished(vec![server(1, "Grüße 中文 of a name that is far too long for any list on a terminal", 1)]);
    press(&mut screen, &[KeyCode::Enter]);
    let mut shown = drawn_on(&mut screen, 80, 24);
    typed(&mut screen, "?");
    shown += &drawn_on(&mut screen, 80, 24);
    assert!(shown.is_ascii() && shown.contains("Gr??e ? ?  of a name"), "{shown}");
}

/// What a terminal gets.
#[derive(Clone, Default)]
struct Written(Rc<RefCell<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The size of each of several drawings.
fn bytes_of(screen: &mut Screen, draws: usize) -> Vec<usize> {
    let area = ratatui::layout::Rect::new(0, 0, 80, 24);
    let options = ratatui::TerminalOptions { viewport: ratatui::Viewport::Fixed(area) };
    let written = Written::default();
    let mut terminal = Terminal::with_options(CrosstermBackend::new(written.clone()), options).unwrap();
    (0..draws)
        .map(|_| {
            terminal.draw(|frame| screen.draw(frame)).unwrap();
            std::mem::take(&mut *written.0.borrow_mut()).len()
        })
        .collect()
}

#[test]
fn a_screen_that_does_not_change_costs_next_to_nothing() {
    let mut screen = with(many(30));
    // The age of the list may change in between.
    let bytes = bytes_of(&mut screen, 2);
    assert!(bytes[0] > 1000 && bytes[1] < 60, "{bytes:?}");
}

#[test]
fn nothing_that_a_server_says_controls_the_terminal() {
    let evil = "\u{1b}]52;c;b3duZWQ=\u{7}\u{1b}[2Jname\u{9b}31m";
    let mut one = server(1, "x", 1);
    let details =
        Details { players: vec![Player { name: evil.into(), ..Player::default() }], rules: [(evil, evil)].into() };
    one.facts =
        Facts { name: evil.into(), map: evil.into(), mode: evil.into(), details: Some(Arc::new(details)), ..one.facts };
    one.state = State::Failed(evil.into());
    let mut screen = with(vec![one]);
    fail(&mut screen, evil);
    press(&mut screen, &[KeyCode::Enter]);
    screen.note(evil.into());
    for cell in Terminal::new(TestBackend::new(90, 30))
        .and_then(|mut terminal| {
            terminal.draw(|frame| screen.draw(frame))?;
            Ok(terminal.backend().buffer().content.clone())
        })
        .unwrap()
    {
        assert!(!cell.symbol().contains(char::is_control), "{:?}", cell.symbol());
    }
}
