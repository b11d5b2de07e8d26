fn main() -> std::process::ExitCode {
    rallypoint::cli::run()
}
