"""`python -m experiments`: the demonstration."""

from experiments.demo import main

if __name__ == "__main__":
    main()
