//! Lists as views change, clients wait and memory is short.

use super::*;
use crate::registry::view::Body;
use std::sync::mpsc;

#[test]
fn a_large_list_that_nobody_asks_for_is_freed_and_a_small_one_stays() {
    struct Bytes(usize);
    impl Renderer for Bytes {
        fn render(&self, _: &View) -> Body {
            vec![0; self.0].into()
        }
    }
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let small: Arc<dyn Renderer> = Arc::new(Bytes(1_000));
    let large: Arc<dyn Renderer> = Arc::new(Bytes(Rendered::LARGE_BYTES));
    let read = |renderer| lists.get_blocking(renderer, || views.newest());
    let start = Instant::now();
    let forget = |after: Duration| {
        lists.forget_unused_at(start + after);
        lists.held.bytes()
    };
    let both = 1_000 + Rendered::LARGE_BYTES;
    drop((read(&small), read(&large)));
    assert_eq!(forget(Duration::ZERO), both, "just asked for");
    assert_eq!(forget(ASKED_FOR - Duration::from_millis(1)), both);
    let reader = read(&large);
    lists.cell(&large).asked_at_ms.store(10_000, Ordering::Relaxed);
    assert_eq!(forget(ASKED_FOR + Duration::from_secs(5)), both, "asked for again");
    assert_eq!(forget(ASKED_FOR * 2), both, "a slow reader has it");
    drop(reader);
    assert_eq!(lists.held.bytes(), 1_000);
    assert_eq!(read(&large).body.len(), Rendered::LARGE_BYTES, "rendered again");
}

#[tokio::test]
async fn common_lists_have_a_bound_too() {
    struct Bytes(usize);
    impl Renderer for Bytes {
        fn render(&self, _: &View) -> Body {
            vec![0; self.0].into()
        }
    }
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let [first, second, third, fourth] = [1_500, 1_000, 900, 1].map(|size| Arc::new(Bytes(size)) as Arc<dyn Renderer>);
    let get = async |renderer| lists.get(renderer, [192, 0, 2, 1].into(), || views.newest()).await;
    lists.held.set_max(2_000);
    for (renderer, held) in [(&first, 1_500), (&second, 2_500), (&third, 1_900)] {
        let asked_at_ms = lists.cells().iter().map(|(_, cell)| cell.asked_at_ms()).max().unwrap_or(0);
        get(renderer).await.unwrap();
        lists.cell(renderer).asked_at_ms.store(asked_at_ms + 1, Ordering::Relaxed);
        assert_eq!(lists.held.bytes(), held, "the one that nobody has asked for for longest makes room");
    }
    let readers = [get(&second).await.unwrap(), get(&third).await.unwrap()];
    lists.held.set_max(1_800);
    assert_eq!(get(&fourth).await.err(), Some(Refusal::Busy), "readers hold them all");
    drop(readers);
    assert_eq!(get(&fourth).await.unwrap().body.len(), 1);
}

#[test]
fn an_expensive_list_is_good_for_19_times_as_long_as_it_took() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let fresh = Freshness::new(1, Duration::from_millis(50), at(50));
    assert!(fresh.is_good(2, at(50 + 949)));
    assert!(!fresh.is_good(2, at(50 + 950)));
    assert!(fresh.is_good(1, at(1_000_000)), "nothing has changed");
    let expensive = Freshness::new(1, Duration::from_secs(60), at(60_000));
    assert!(expensive.is_good(2, at(60_000 + 1_999)) && !expensive.is_good(2, at(60_000 + 2_000)));
    let cheap = Freshness::new(1, Duration::from_millis(1), at(1));
    assert!(!cheap.is_good(2, at(1)) && cheap.is_good(1, at(1)), "views come at intervals of 20 times as long");
    assert!(Freshness::new(1, Duration::from_millis(2), at(2)).is_good(2, at(2)));
}

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A renderer that reports when it begins, and continues when the test allows it.
struct Slow {
    begins: mpsc::Sender<u64>,
    may_go_on: Mutex<mpsc::Receiver<()>>,
    is_stale: AtomicBool,
    is_common: bool,
}

fn slow() -> (Arc<Slow>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
    slow_and(true)
}

fn slow_and(is_common: bool) -> (Arc<Slow>, mpsc::Receiver<u64>, mpsc::Sender<()>) {
    let ((begins, begun), (go_on, may_go_on)) = (mpsc::channel(), mpsc::channel());
    let (may_go_on, is_stale) = (Mutex::new(may_go_on), AtomicBool::new(false));
    (Arc::new(Slow { begins, may_go_on, is_stale, is_common }), begun, go_on)
}

impl Renderer for Slow {
    fn render(&self, view: &View) -> Body {
        self.begins.send(view.serial).unwrap();
        self.may_go_on.lock().unwrap().recv().unwrap();
        view.serial.to_string().into()
    }

    fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    fn is_common(&self) -> bool {
        self.is_common
    }
}

/// Views without servers, with increasing serials.
#[derive(Default)]
struct Views(AtomicU64);

impl Views {
    fn next(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn newest(&self) -> Arc<View> {
        Arc::new(View::new(self.0.load(Ordering::Relaxed), 0, Vec::new()))
    }
}

fn text(list: &Rendered) -> String {
    String::from_utf8(list.body.to_vec()).unwrap()
}

#[test]
fn clients_get_the_last_list_while_a_slow_one_is_rendered() {
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let (slow, begun, go_on) = slow();
    let renderer: Arc<dyn Renderer> = slow.clone();
    let shown = || text(&lists.get_blocking(&renderer, || views.newest()));
    views.next();
    go_on.send(()).unwrap();
    assert_eq!(shown(), "1");
    assert_eq!(begun.try_recv(), Ok(1));
    assert_eq!(shown(), "1");
    assert!(begun.try_recv().is_err(), "once per view");
    slow.is_stale.store(true, Ordering::Relaxed); // so that it is rendered anew, however long it took
    views.next();
    std::thread::scope(|scope| {
        let slow = scope.spawn(shown);
        assert_eq!(begun.recv(), Ok(2));
        views.next();
        assert_eq!(shown(), "1", "another thread renders: the last one does");
        go_on.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), "2");
    });
    assert!(begun.try_recv().is_err());
}

#[test]
fn a_list_that_only_waited_is_not_expensive() {
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let (slow, begun, go_on) = slow();
    let renderer: Arc<dyn Renderer> = slow;
    let shown = || text(&lists.get_blocking(&renderer, || views.newest()));
    views.next();
    std::thread::scope(|scope| {
        let first = scope.spawn(shown);
        assert_eq!(begun.recv(), Ok(1));
        // Others use the processor, as on a busy machine.
        super::super::effort::work(Duration::from_millis(10));
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap(), "1");
    });
    views.next();
    go_on.send(()).unwrap();
    assert_eq!(shown(), "2", "at once");
}

#[test]
fn an_old_list_is_not_sent_while_the_next_one_is_rendered() {
    let (cell, slow) = (Cell::default(), slow().0);
    let of = |serial| View::new(serial, 0, Vec::new());
    let _turn = cell.turn.clone().try_lock_owned().unwrap();
    let now = Instant::now();
    let rendered = |before: Duration| {
        let at = now.checked_sub(before).unwrap();
        let fresh = Freshness::new(1, Duration::ZERO, at);
        cell.last.store(Some(Arc::new(Last { list: Arc::new(Rendered::new("old")), fresh })));
    };
    rendered(Duration::from_secs(1));
    assert!(matches!(cell.find(&*slow, &of(2), false), Found::List(_)));
    rendered(Duration::from_secs(10));
    assert!(matches!(cell.find(&*slow, &of(1), false), Found::List(_)), "nothing has changed");
    assert!(matches!(cell.find(&*slow, &of(2), false), Found::Wait));
}

#[test]
fn the_first_list_is_rendered_once_for_all_waiting_clients() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (lists, views) = (Arc::new(Lists::new(SharedAccounts::default())), Arc::new(Views::default()));
    let (slow, begun, go_on) = slow();
    let renderer: Arc<dyn Renderer> = slow;
    let ask = || {
        let (lists, views, renderer) = (lists.clone(), views.clone(), renderer.clone());
        runtime.spawn(async move { text(&lists.get(&renderer, CLIENT, || views.newest()).await.unwrap()) })
    };
    let gone = ask();
    assert_eq!(begun.recv(), Ok(0));
    let waiting: Vec<_> = (0..20).map(|_| ask()).collect();
    // Both workers are free although nothing is rendered yet, and the client who asked first may go.
    runtime.block_on(async { tokio::spawn(async {}).await.unwrap() });
    gone.abort();
    go_on.send(()).unwrap();
    for one in waiting {
        assert_eq!(runtime.block_on(one).unwrap(), "0");
    }
    assert!(begun.try_recv().is_err());
    assert_eq!(text(&lists.get_blocking(&renderer, || views.newest())), "0", "and for other threads");
}

#[test]
fn a_list_that_takes_long_is_prepared_beside_those_who_ask_for_it() {
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let (slow, begun, go_on) = slow();
    let renderer: Arc<dyn Renderer> = slow.clone();
    let shown = || text(&lists.get_blocking(&renderer, || views.newest()));
    let finished = Mutex::new(Vec::new());
    let finish = |list: &Arc<Rendered>, before: Option<&Rendered>| {
        finished.lock().unwrap().push((text(list), before.map(text)));
    };
    let prepare = || lists.prepare(&views.newest(), &finish);
    lists.begin_to_prepare();
    assert_eq!(prepare(), Err(None), "nobody has asked, and nothing is kept");
    lists.keep(vec![renderer.clone()]);
    go_on.send(()).unwrap();
    assert_eq!(prepare(), Ok(()), "before anybody asks");
    assert_eq!((begun.try_recv(), prepare()), (Ok(0), Err(None)), "once per view");
    // As if it had taken long, some time ago.
    let age = |took_ms: u64, before_s: u64| {
        let last = lists.cell(&renderer).last.load_full().unwrap();
        let at = Instant::now().checked_sub(Duration::from_secs(before_s)).unwrap();
        let fresh = Freshness::new(last.fresh.version, Duration::from_millis(took_ms), at);
        lists.cell(&renderer).last.store(Some(Arc::new(Last { list: last.list.clone(), fresh })));
    };
    age(100, 0);
    views.next();
    assert!(matches!(prepare(), Err(Some(_))), "it rests");
    age(100, 3);
    assert!(matches!(prepare(), Err(Some(_))), "longer if nobody asks");
    assert_eq!(shown(), "0", "a client does not wait for the next one");
    go_on.send(()).unwrap();
    assert_eq!((prepare(), begun.try_recv()), (Ok(()), Ok(1)), "and it is prepared for the others");
    assert_eq!(*finished.lock().unwrap(), [("0".into(), None), ("1".into(), Some("0".into()))]);
    // A client can wait for one that is quick, and for one that is too old.
    for (took_ms, before_s, serial) in [(1, 3, 2), (100, 60, 3)] {
        age(took_ms, before_s);
        views.next();
        go_on.send(()).unwrap();
        assert_eq!((shown(), begun.try_recv()), (serial.to_string(), Ok(serial)));
    }
    // One that shows the same is not rendered again.
    lists.keep(Vec::new());
    age(100, 3);
    assert_eq!(prepare(), Err(None));
    lists.held.set_max(0);
    lists.keep(vec![renderer.clone()]);
    lists.cell(&renderer).asked_at_ms.store(0, Ordering::Relaxed);
    views.next();
    age(100, 60);
    assert_eq!(prepare(), Err(None), "there is no memory for lists that nobody asks for");
    lists.held.set_max(usize::MAX);
    lists.spare();
    assert!(lists.cells().is_empty(), "nobody has asked for it");
    assert_eq!(prepare(), Err(None), "memory was short just now");
}

/// Its lists share work with others; each says which view it was rendered from.
struct OfGroup;

impl Renderer for OfGroup {
    fn render(&self, view: &View) -> Body {
        view.serial.to_string().into()
    }

    fn group(&self) -> Option<usize> {
        Some(1)
    }
}

#[test]
fn lists_that_share_work_are_rendered_from_one_view_while_it_is_worth_it() {
    let (lists, views) = (Lists::new(SharedAccounts::default()), Views::default());
    let shown = || text(&lists.get_blocking(&(Arc::new(OfGroup) as Arc<dyn Renderer>), || views.newest()));
    views.next();
    assert_eq!(shown(), "1");
    // The first one took long.
    lists.groups()[0].until = Instant::now() + Duration::from_secs(60);
    views.next();
    assert_eq!(shown(), "1", "another list of the same group");
    lists.forget_groups();
    assert_eq!(shown(), "1", "it is in use");
    lists.groups()[0].until = Instant::now();
    assert_eq!(shown(), "2");
    views.next();
    assert_eq!(shown(), "3", "it took no time");
    lists.groups()[0].until = Instant::now().checked_sub(GROUP_KEPT).unwrap();
    lists.forget_groups();
    assert!(lists.groups().is_empty());
}

#[test]
fn lists_with_own_parameters_never_hold_up_a_common_one_and_are_refused_in_the_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (lists, views) = (Arc::new(Lists::new(SharedAccounts::default())), Arc::new(Views::default()));
    let (own, begun, go_on) = slow_and(false);
    let ask = |renderer: Arc<dyn Renderer>| {
        let (lists, views) = (lists.clone(), views.clone());
        runtime.spawn(async move { lists.get(&renderer, CLIENT, || views.newest()).await.map(|list| text(&list)) })
    };
    // As many as can be rendered at a time, and one more that waits and whose client then goes.
    let places = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).max(1);
    let others: Vec<_> = (1..places).map(|_| slow_and(false)).collect();
    let working: Vec<_> = others.iter().map(|(other, ..)| ask(other.clone())).chain([ask(own)]).collect();
    assert_eq!(begun.recv(), Ok(0));
    others.iter().for_each(|(_, begun, _)| assert_eq!(begun.recv(), Ok(0)));
    let (gone, gone_begun, _) = slow_and(false);
    let going = ask(gone);
    while lists.queue.waiting() == 0 {
        std::thread::yield_now();
    }
    let (common, _common_begun, common_go_on) = slow();
    common_go_on.send(()).unwrap();
    assert_eq!(runtime.block_on(ask(common)).unwrap(), Ok("0".into()), "while all places are taken");
    going.abort();
    assert!(runtime.block_on(going).is_err());
    go_on.send(()).unwrap();
    others.iter().for_each(|(_, _, go_on)| go_on.send(()).unwrap());
    for one in working {
        assert_eq!(runtime.block_on(one).unwrap(), Ok("0".into()));
    }
    assert!(gone_begun.try_recv().is_err(), "work for a client who has gone is not begun");
    // When too much is held by slow readers, only common lists are rendered.
    lists.held.set_max(0);
    let (common, _common_begun, common_go_on) = slow();
    common_go_on.send(()).unwrap();
    assert!(runtime.block_on(ask(common.clone())).unwrap().is_ok() && lists.held.is_over());
    assert_eq!(runtime.block_on(ask(slow_and(false).0)).unwrap(), Err(Refusal::Busy));
    assert_eq!(lists.cells().len(), 2);
    lists.spare();
    assert_eq!(lists.cells().len(), 1);
}

#[test]
fn what_waited_is_refused_when_too_much_is_held_at_its_turn() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let (lists, views) = (Arc::new(Lists::new(SharedAccounts::default())), Arc::new(Views::default()));
    let ask = |renderer: Arc<dyn Renderer>| {
        let (lists, views) = (lists.clone(), views.clone());
        runtime.spawn(async move { lists.get(&renderer, CLIENT, || views.newest()).await.map(|list| text(&list)) })
    };
    let places = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(2).max(1);
    let first: Vec<_> = (0..places).map(|_| slow_and(false)).collect();
    let working: Vec<_> = first.iter().map(|(own, ..)| ask(own.clone())).collect();
    first.iter().for_each(|(_, begun, _)| assert_eq!(begun.recv(), Ok(0)));
    let (late, late_begun, _go_on) = slow_and(false);
    let waiting = ask(late);
    while lists.queue.waiting() == 0 {
        std::thread::yield_now();
    }
    lists.held.set_max(0);
    first.iter().for_each(|(_, _, go_on)| go_on.send(()).unwrap());
    for one in working {
        assert_eq!(runtime.block_on(one).unwrap(), Ok("0".into()), "it was begun before");
    }
    assert_eq!(runtime.block_on(waiting).unwrap(), Err(Refusal::Busy));
    assert!(late_begun.try_recv().is_err());
}

#[test]
fn lists_of_renderers_that_are_gone_make_room_first() {
    let lists = Lists::new(SharedAccounts::default());
    let popular: Arc<dyn Renderer> = slow().0;
    let cell = lists.cell(&popular);
    for _ in 0..LISTS_MAX * 2 {
        let renderer: Arc<dyn Renderer> = slow().0;
        lists.cell(&renderer);
    }
    assert!(lists.cells.lock().unwrap().len() <= 3);
    assert!(Arc::ptr_eq(&cell, &lists.cell(&popular)));
    let kept: Vec<Arc<dyn Renderer>> = (0..LISTS_MAX * 2).map(|_| slow().0 as Arc<dyn Renderer>).collect();
    kept.iter().for_each(|renderer| drop(lists.cell(renderer)));
    assert_eq!(lists.cells.lock().unwrap().len(), LISTS_MAX, "and their number is bounded");
}
