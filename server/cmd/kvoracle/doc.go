// Command kvoracle serves the oracle: it tells gateways which worker should take a prompt.
//
// kvoracle --help lists the settings. Each can be given as a flag, as an environment variable, or in a YAML file named
// by --config; a flag wins over the environment, which wins over the file, which wins over the default.
//
// Once it can be called it prints "kvoracle: serving on ADDRESS" on stdout; everything else goes to stderr as log lines.
// On SIGHUP, and when the file of --config has changed, the settings are read again; docs/operations.md says which can
// change while it runs.
//
// It ends with exit code 0 after SIGINT or SIGTERM and an orderly drain, 1 when it could not serve, 2 when the settings
// are wrong. A second signal ends it at once.
package main
