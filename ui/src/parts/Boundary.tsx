import type { ReactNode } from 'react'
import { Component } from 'react'
import { Problem } from './Problem'

interface BoundaryState {
  error: unknown
}

// An error within a part of the page stays in that part.
export class Boundary extends Component<{ children: ReactNode }, BoundaryState> {
  override state: BoundaryState = { error: null }

  static getDerivedStateFromError(error: unknown): BoundaryState {
    return { error }
  }

  override render() {
    if (this.state.error === null) return this.props.children
    return <Problem error={this.state.error} again={() => this.setState({ error: null })} />
  }
}
